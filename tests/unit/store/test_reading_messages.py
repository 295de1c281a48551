"""Reading the messages of a slot: only its own whole records are taken, in few calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.store.reading import GAP_MAX_BYTES, SPAN_MAX_BYTES, read_messages
from broker.store.record import (
    FRONT,
    SETTLED,
    TARGET,
    TARGET_BYTES,
    encode_message,
    encode_moved,
    encode_prefix,
    encode_route,
)
from tests.stored_record import StoredMessage, StoredMessages

QUEUE = 7
FIRST = 250  # the ids cross a block of 256
ROUTE = encode_route("e", "key")
MOVED = encode_moved(5, encode_message(1, 1, 1, ROUTE, b"h", b"251", b""), TARGET.pack(QUEUE, 251))


def record(message_id: int, *others: tuple[int, int], queue: int = QUEUE, at_ms: int = 3) -> bytes:
    """Return the record of a message, whose body is its id; other targets follow the first one."""
    targets = TARGET.pack(queue, message_id) + b"".join([TARGET.pack(*other) for other in others])
    return encode_message(1, at_ms, 1, ROUTE, b"h", b"%d" % message_id, targets)


def read(
    records: Sequence[bytes], gaps: Sequence[int] = (), wanted: Sequence[int] | None = None
) -> tuple[list[StoredMessage | None], list[int], list[tuple[int, int]]]:
    """Return the messages, the reported indexes, and the calls. Each record follows its gap, if it has one."""
    log = bytearray(64)
    positions = []
    for index, one in enumerate(records):
        log += bytes(gaps[index] if gaps else 0)
        positions.append(len(log))
        log += one
    reported: list[int] = []
    calls: list[tuple[int, int]] = []

    def read_span(position: int, size: int) -> bytes:
        calls.append((position, size))
        return bytes(log[position : position + size])

    entries = (positions, [len(one) for one in records])
    indexes = range(len(records)) if wanted is None else wanted
    found = read_messages(
        read_span, QUEUE, FIRST, entries, indexes, StoredMessages(), lambda _, at: reported.append(at)
    )
    return found, reported, calls


def test_neighbours_that_differ_are_read() -> None:
    """Ids beyond a block, other moments, further targets and moved records are read with what is their own."""
    records = [
        record(250), MOVED, record(252, at_ms=4), record(253, (8, 1), at_ms=4), record(9, (QUEUE, 254), queue=8),
        *[record(FIRST + index, at_ms=5) for index in range(5, 20)],
    ]  # fmt: skip
    found, reported, calls = read(records)
    assert reported == []
    assert len(calls) == 1
    messages = [message for message in found if message is not None]
    assert [message.body for message in messages] == [
        b"250", b"251", b"252", b"253", b"9", *[b"%d" % (FIRST + index) for index in range(5, 20)]
    ]  # fmt: skip
    assert [message.timestamp_ms for message in messages] == [3, 1, 4, 4, 3, *[5] * 15]
    assert [len(message.targets) for message in messages] == [16, 16, 16, 32, 32, *[16] * 15]


_OTHER_KIND = FRONT.pack(1, 3, SETTLED, 1, len(ROUTE), 1, TARGET_BYTES) + TARGET.pack(QUEUE, 251) + ROUTE + b"hb"
NOT_ITS_OWN = {
    "another block of ids": record(251 + 256),
    "another id": record(252),
    "another queue": record(251, queue=8),
    "no target": encode_message(1, 3, 1, TARGET.pack(QUEUE, 251), b"h", b"b", b""),
    "another kind": encode_prefix(_OTHER_KIND) + _OTHER_KIND,
}


@pytest.mark.parametrize("other", NOT_ITS_OWN.values(), ids=list(NOT_ITS_OWN))
def test_a_record_of_something_else_is_reported(other: bytes) -> None:
    """A whole record that is not the message's is reported, and its neighbours are read."""
    found, reported, _ = read([record(250), other, record(252)])
    assert reported == [1]
    assert [message and message.body for message in found] == [b"250", None, b"252"]


def test_a_flipped_bit_is_reported() -> None:
    """A record with any flipped bit is reported, also in the octets that its neighbour has in common with it."""
    whole = record(251)
    for bit in range(len(whole) * 8):
        torn = bytearray(whole)
        torn[bit // 8] ^= 1 << bit % 8
        assert read([record(250), bytes(torn), record(252)])[1] == [1], f"bit {bit}"


def test_distant_records_and_very_many_are_read_in_several_calls() -> None:
    """A gap that is larger than what a call costs is not read, and no call reads more than the bound."""
    gaps = [0, 1, GAP_MAX_BYTES, GAP_MAX_BYTES + 1]
    found, reported, calls = read([record(FIRST + index) for index in range(4)], gaps)
    assert (len(found), reported, len(calls)) == (4, [], 2)
    large = [
        encode_message(1, 3, 1, ROUTE, b"h", bytes(SPAN_MAX_BYTES // 4), TARGET.pack(QUEUE, FIRST + index))
        for index in range(9)
    ]
    found, reported, calls = read(large)
    assert (len(found), reported, len(calls)) == (9, [], 3)
    assert max(size for _, size in calls) <= SPAN_MAX_BYTES
    assert [message is not None for message in read(large, wanted=[2, 3])[0]] == [
        False,
        False,
        True,
        True,
        *[False] * 5,
    ]
    assert len(read(large[:3], wanted=[0, 2])[2]) == 2  # what lies between is not wanted
