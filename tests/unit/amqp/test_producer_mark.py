"""Sequence numbers in headers: headers that differ only in the number share facts, and consumers do not see it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.amqp.content_header import KNOWN_MAX, HeaderGauge, decode_properties, measure_header
from broker.amqp.header_facts import HeaderFacts, ProducerMark
from broker.amqp.table_writer import counted

HEADERS_FLAG = 1 << 13
Entries = list[tuple[bytes, bytes]]
PRODUCER = (b"x-producer", b"S" + counted(b"job"))


def number(sequence: int, kind: bytes = b"l", layout: str = ">q") -> tuple[bytes, bytes]:
    """Return an x-seq of this type."""
    return b"x-seq", kind + struct.pack(layout, sequence)


def header_of(entries: Entries, front: bytes = b"", behind: bytes = b"", flags: int = 0) -> bytes:
    """Return a content header with raw table entries and the octets of other properties."""
    table = counted(b"".join(bytes([len(name)]) + name + value for name, value in entries))
    return struct.pack(">HHQH", 60, 0, 5, flags | HEADERS_FLAG) + front + table + behind


def mark_of(facts: HeaderFacts) -> ProducerMark:
    """Return the producer mark of facts that have one."""
    assert facts.mark is not None
    return facts.mark


@pytest.mark.parametrize(
    ("kind", "layout", "largest"),
    [
        (b"b", ">b", 2**7 - 1), (b"B", ">B", 2**8 - 1), (b"s", ">h", 2**15 - 1), (b"u", ">H", 2**16 - 1),
        (b"I", ">i", 2**31 - 1), (b"i", ">I", 2**32 - 1), (b"l", ">q", 2**63 - 1), (b"L", ">q", 2**63 - 1),
    ],
)  # fmt: skip
def test_every_whole_number_is_a_sequence(kind: bytes, layout: str, largest: int) -> None:
    """Every whole-number type is read, because clients write a number as short as possible."""
    gauge = HeaderGauge(16, 100)
    for sequence in (0, 1, largest):
        header = header_of([PRODUCER, number(sequence, kind, layout)])
        mark = mark_of(gauge.facts(header))
        assert (mark.producer, mark.sequence(header)) == ("job", sequence)


NAMES = st.sampled_from([b"a", b"x-seq", b"x-producer", b"x-producer-table", b"CC", b"n\x05x-seql"])
VALUES = st.sampled_from(
    [
        b"V", b"t\x01", b"S" + counted(b"job"), b"S" + counted(b"\x05x-seql12345678"), b"l" + bytes(8),
        b"I\0\0\0\7", b"A" + counted(b"V"), b"F" + counted(b"\x05x-seql" + bytes(8)),
        b"F" + counted(b"\x0ax-producerV"),
    ]
)  # fmt: skip


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=5), min_size=1, max_size=8))
def test_what_is_remembered_is_what_would_be_measured(tables: list[Entries]) -> None:
    """A gauge with a filled cache gives the same result as an empty one, whatever surrounds the number."""
    gauge = HeaderGauge(16, 100)
    for entries in tables:
        for sequence in (5, 6):
            header = header_of([*entries, PRODUCER, number(sequence)])
            facts, fresh = gauge.facts(header), measure_header(header)
            assert facts.fault == fresh.fault
            assert (facts.mark is None) is (fresh.mark is None)
            if facts.mark is not None and fresh.mark is not None:
                assert facts.mark.producer == fresh.mark.producer
                assert facts.mark.sequence(header) == fresh.mark.sequence(header)
                assert facts.mark.bare == fresh.mark.bare


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5))
def test_what_consumers_see_is_well_formed(entries: Entries) -> None:
    """Without the number the header is valid, and the other entries keep their octets."""
    header = header_of([*entries, PRODUCER, number(7)], behind=b"\x02", flags=1 << 12)
    facts = measure_header(header)
    if facts.mark is None:
        return
    bare = header[:12] + facts.mark.bare
    assert measure_header(bare).mark is None
    assert decode_properties(bare).delivery_mode == 2
    kept = [(name, value) for name, value in entries if not name.startswith((b"x-seq", b"x-producer"))]
    owned = kept or any(name == b"x-producer-table" for name, _ in entries)
    assert bare == (header_of(kept, behind=b"\x02", flags=1 << 12) if owned else header[:12] + b"\x10\0\x02")


def test_ever_new_numbers_do_not_push_out_what_is_remembered() -> None:
    """Many numbers share their facts and do not evict other properties from the cache."""
    gauge = HeaderGauge(16, 100)
    plain = struct.pack(">HHQH", 60, 0, 5, 1 << 12) + b"\x02"
    known = gauge.facts(plain)
    headers = [header_of([PRODUCER, number(sequence)]) for sequence in range(2 * KNOWN_MAX)]
    facts: list[Any] = [gauge.facts(header) for header in headers]
    assert all(one is facts[0] for one in facts)
    assert gauge.known == {plain[12:]: known}
    mark = mark_of(facts[0])
    assert [mark.sequence(header) for header in headers] == list(range(2 * KNOWN_MAX))
    assert all(header.startswith(mark.before, 12) and header.endswith(mark.after) for header in headers)
