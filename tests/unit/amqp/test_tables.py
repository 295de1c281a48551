"""Field tables: every type, exact lengths, and limits on depth, entries and work."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pamqp import decode

from broker.amqp.errors import ConnectionFault
from broker.amqp.tables import TableReader


def counted(octets: bytes) -> bytes:
    """Return octets after their length."""
    return struct.pack(">I", len(octets)) + octets


def table(*entries: bytes) -> bytes:
    """Return a table with the keys a, b, c."""
    return counted(b"".join(b"\x01" + bytes([97 + place]) + entry for place, entry in enumerate(entries)))


def read(octets: bytes, **limits: Any) -> Any:
    """Skip the table in the octets, then read and return it."""
    end = TableReader(octets, **limits).skip_table(0, len(octets))
    value, stop = TableReader(octets, **limits).table(0, len(octets))
    assert stop == end == len(octets)
    return value


# Type and octets of a value, and the value; from RabbitMQ's errata to 0-9-1.
VALUES: list[tuple[bytes, Any]] = [
    (b"t\x00", False),
    (b"t\x01", True),
    (b"t\x02", True),
    (b"b\xff", -1),
    (b"B\xff", 255),
    (b"s\xff\xfe", -2),
    (b"u\xff\xfe", 65534),
    (b"I\xff\xff\xff\xfd", -3),
    (b"i\xff\xff\xff\xfd", 4294967293),
    (b"l" + b"\xff" * 8, -1),
    (b"L\x7f" + b"\xff" * 7, 9223372036854775807),
    (b"f" + struct.pack(">f", 0.5), 0.5),
    (b"d" + struct.pack(">d", 0.1), 0.1),
    (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
    (b"D\xff\xff\xff\xff\xff", Decimal(4294967295).scaleb(-255)),
    (b"S" + counted("añ".encode()), "añ"),
    (b"S" + counted(b"\xff\x00"), b"\xff\x00"),
    (b"S" + counted(b""), ""),
    (b"x" + counted(b"\x00\x01"), bytearray(b"\x00\x01")),
    (b"T" + struct.pack(">Q", 1234567890), datetime(2009, 2, 13, 23, 31, 30, tzinfo=UTC)),
    (b"T" + b"\xff" * 8, 18446744073709551615),
    (b"V", None),
    (b"A" + counted(b""), []),
    (b"A" + counted(b"t\x01VA" + counted(b"b\x07")), [True, None, [7]]),
    (b"F" + table(), {}),
    (b"F" + table(b"V", b"F" + table(b"t\x01")), {"a": None, "b": {"a": True}}),
]


@pytest.mark.parametrize(("octets", "value"), VALUES)
def test_every_type(octets: bytes, value: Any) -> None:
    """A value of each type is read in a table and in an array."""
    assert read(table(octets, b"V")) == {"a": value, "b": None}
    assert read(table(b"A" + counted(octets + octets)))["a"] == [value, value]


@pytest.mark.parametrize(("octets", "value"), [value for value in VALUES if value[0][:1] not in b"DT"])
def test_same_as_pamqp(octets: bytes, value: Any) -> None:
    """Types that pamqp reads correctly give the same value."""
    assert read(table(octets)) == decode.field_table(table(octets))[1] == {"a": value}


@pytest.mark.parametrize("octets", [octets for octets, _ in VALUES])
def test_lengths_off_by_one(octets: bytes) -> None:
    """A value that is one octet short, or a table length off by one, is 502."""
    good = table(octets)
    size = len(good) - 4
    for wrong in (good[:-1], struct.pack(">I", size + 1) + good[4:], struct.pack(">I", size - 1) + good[4:]):
        for kind in ("skip", "table"):
            reader = TableReader(wrong)
            with pytest.raises(ConnectionFault) as caught:
                _ = reader.skip_table(0, len(wrong)) if kind == "skip" else reader.table(0, len(wrong))
            assert caught.value.reply_code == 502


@pytest.mark.parametrize("cut", range(40))
def test_cut_anywhere(cut: int) -> None:
    """A table that is cut anywhere is 502."""
    whole = table(b"S" + counted(b"abc"), b"A" + counted(b"t\x01b\x02"), b"F" + table(b"I\x00\x00\x00\x01"))
    with pytest.raises(ConnectionFault):
        read(whole[: min(cut, len(whole) - 1)])


def test_inner_length_may_not_leave_the_outer() -> None:
    """A string that exceeds its table is 502, even if the payload has enough octets."""
    octets = table(b"S" + struct.pack(">I", 10)) + b"0123456789"
    with pytest.raises(ConnectionFault, match="length in field table"):
        TableReader(octets).table(0, len(octets))


@pytest.mark.parametrize("kind", [b"\x00", b"c", b"z", b"\xff", b"U"])
def test_unknown_types(kind: bytes) -> None:
    """A type that RabbitMQ's dialect lacks is 502."""
    with pytest.raises(ConnectionFault, match="unknown field type"):
        read(table(kind + bytes(8)))


def nested(depth: int, kind: bytes) -> bytes:
    """Return a table of tables or arrays, nested this deep."""
    octets = counted(b"")
    for _ in range(depth - 1):
        octets = counted(kind + octets) if kind == b"A" else table(kind + octets)
    return octets if kind == b"F" else table(kind + octets)


@pytest.mark.parametrize("kind", [b"A", b"F"])
def test_depth(kind: bytes) -> None:
    """Sixteen levels are read; seventeen and five thousand are 502, so the recursion is bounded."""
    extra = 1 if kind == b"A" else 0
    read(nested(16 - extra, kind))
    for depth in (17 - extra, 1000, 5000):
        octets = nested(depth, kind)
        with pytest.raises(ConnectionFault, match="nested more than 16"):
            TableReader(octets).table(0, len(octets))
        with pytest.raises(ConnectionFault, match="nested more than 16"):
            TableReader(octets).skip_table(0, len(octets))


@pytest.mark.parametrize("kind", ["array", "table", "spread"])
def test_entries(kind: str) -> None:
    """The limit counts the entries of the whole payload, including nested tables."""

    def octets(entries: int) -> bytes:
        if kind == "array":
            return table(b"A" + counted(b"V" * (entries - 1)))
        if kind == "table":
            return counted(b"".join(b"\x02%2dV" % (place % 100) for place in range(entries)))
        return table(*[b"A" + counted(b"V" * (entries // 4 - 1))] * 4)

    read(octets(4096))
    with pytest.raises(ConnectionFault, match="more than 4096 entries"):
        TableReader(octets(4100)).table(0, 1 << 20)
    with pytest.raises(ConnectionFault, match="more than 4096 entries"):
        TableReader(octets(4100)).skip_table(0, 1 << 20)
    assert len(read(octets(100), entries_max=100)) >= 1


class CountingOctets(bytes):
    """Counts the octets that slices copy."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice):
            CountingOctets.copied += len(found)
        return found


@pytest.mark.interpreted("compiled code slices bytes without asking a subclass")
@pytest.mark.parametrize("entries", [10, 1000, 4000])
def test_work_is_linear(entries: int) -> None:
    """No octet is copied twice: 4,000 booleans before a long string cost no more."""
    booleans = b"t\x01" * entries
    octets = CountingOctets(table(b"A" + counted(booleans + b"S" + counted(bytes(100_000)))))
    CountingOctets.copied = 0
    TableReader(octets).table(0, len(octets))
    assert 100_000 <= CountingOctets.copied <= len(octets)
    CountingOctets.copied = 0
    TableReader(octets).skip_table(0, len(octets))
    assert CountingOctets.copied == 0


def test_keys_that_are_not_utf_8() -> None:
    """Keys of arguments must be UTF-8; keys of relayed headers may be anything and are shown."""
    octets = counted(b"\x02\xff\xfeV")
    with pytest.raises(ConnectionFault, match="not UTF-8"):
        TableReader(octets).table(0, len(octets))
    assert TableReader(octets, errors="replace").table(0, len(octets))[0] == {"\ufffd\ufffd": None}


def test_reads_from_an_offset() -> None:
    """A table within a payload ends where its length says."""
    inner = table(b"b\x05")
    payload = b"before" + inner + b"after"
    assert TableReader(payload).table(6, len(payload)) == ({"a": 5}, 6 + len(inner))


def test_entries_of_a_table() -> None:
    """Every entry is found at its place, whatever its type, and its value can be read alone."""
    payload = b"before" + table(*(octets for octets, _ in VALUES)) + b"after"
    reader = TableReader(payload)
    entries = reader.entries(6)
    assert [entry.key for entry in entries] == [bytes([97 + place]) for place in range(len(VALUES))]
    assert [payload[entry.value_at : entry.end] for entry in entries] == [octets for octets, _ in VALUES]
    assert [reader.value(entry.value_at, entry.end) for entry in entries] == [value for _, value in VALUES]
    bounds = [10, *(entry.end for entry in entries)]
    assert [entry.start for entry in entries] == bounds[:-1]
    assert bounds[-1] == len(payload) - len(b"after")
