"""Due times of delayed messages: in records, and kept in entries by recovery, compaction and rebuilding."""

from __future__ import annotations

import pytest

from broker.delivery.message_loader import MessageLoader
from broker.store.record import (
    PERSISTENT,
    PRODUCER,
    TARGET,
    due_of,
    due_target,
    encode_message,
    encode_moved,
    encode_queue_deleted,
    encode_settled,
)
from tests.stored_record import read_slot
from tests.unit.store.room import ROUTE, Room

HEADER = (60).to_bytes(2, "big") + bytes(2) + (4).to_bytes(8, "big") + bytes(2)


def held(message_id: int, due_ms: int, *, queue: int = 7, number: bytes = b"", body: bytes = b"body") -> bytes:
    """Return the record of a delayed message."""
    targets = number + due_target(due_ms) + TARGET.pack(queue, message_id)
    return encode_message(0, 1, PERSISTENT, ROUTE, HEADER, body, targets)


def moments(room: Room, queue: int = 7) -> list[int]:
    """Return the recovered due times of a queue's messages."""
    slots = room.recovered.queues[queue].slots
    return [due for slot in slots for due in room.store.queues.read_due(queue, slot.first, slot.end)]


def test_a_record_tells_when_its_message_is_due() -> None:
    """The due time is found also after a producer's number; other records have none."""
    assert due_of(held(1, 1 << 42)) == 1 << 42
    assert due_of(held(1, 5, number=TARGET.pack(PRODUCER | 1, 9))) == 5
    assert due_of(encode_message(0, 1, 0, ROUTE, b"", b"", TARGET.pack(7, 1))) == 0


def test_moments_are_recovered() -> None:
    """Due times are recovered across windows, beside other messages; they are not queues and use no queue number."""
    room = Room(window_messages=10)
    room.append(*[held(number, 1000 * number) for number in range(1, 26)], room.message(8))
    recovered = room.reopen()
    assert moments(room) == [1000 * number for number in range(1, 26)]
    assert moments(room, 8) == [0]
    assert (sorted(recovered.queues), recovered.next_queue_number) == ([7, 8], 9)
    assert room.waiting(7)[3] == b"body"


def test_the_moment_of_a_message_that_ends_a_window_early() -> None:
    """The due time of a message beyond a gap survives the end of the window before it, settled or not."""
    room = Room(window_messages=10)
    room.append(held(1, 5), held(15, 6), encode_settled(0, 1, 7, [15]), held(35, 7))
    room.reopen()
    assert moments(room) == [5, 7]


def test_a_moment_of_a_deleted_queue_is_nobody_elses(room: Room) -> None:
    """The due time of a deleted queue's message, or of a known message, is ignored."""
    room.append(held(1, 5), encode_queue_deleted(0, 1, 7), held(2, 5), room.message(8), held(1, 5, queue=9))
    room.append(held(1, 6, queue=9), held(2, 7, queue=9))
    room.reopen()
    assert (moments(room, 8), moments(room, 9)) == ([0], [5, 7])


def test_a_copy_keeps_the_moment(room: Room) -> None:
    """After a crash during compaction, the copy has the due time."""
    positions = room.append(held(1, 5), held(2, 6))
    record = room.store.log.read_span(positions[0], len(held(1, 5)))
    room.append(encode_moved(0, record, due_target(5) + TARGET.pack(7, 1)))
    room.reopen()
    assert moments(room) == [5, 6]


def test_compaction_keeps_the_moments() -> None:
    """The copies have the due times, and so do the entries that refer to them."""
    room = Room(segment_bytes=1000)
    room.append(*[held(number, 100 + number, body=bytes(300)) for number in range(1, 9)])
    room.reopen()
    room.checkpoint()
    before = read_slot(room.store, 7, 1, 9)[0]
    assert before is not None
    relocation = room.relocate(before.position >> 32, room.reference(7))
    assert room.store.finish_relocation(relocation)
    after = read_slot(room.store, 7, 1, 9)[0]
    assert after is not None
    assert after.position > before.position
    assert room.store.queues.read_due(7, 1, 9) == list(range(101, 109))
    room.reopen()
    assert moments(room) == list(range(101, 109))


def test_the_size_of_a_scattered_message_is_its_own(room: Room) -> None:
    """Messages between the requested ones are not counted, though their entries are read along."""
    room.append(*[held(number, 5, body=bytes(5000 if number % 4 else 10)) for number in range(1, 41)])
    room.reopen()
    ids = [8, 4, 20, 16, 7, 12]
    found = room.store.slots.read_some(7, ids, room.store.log.segments, 2000, MessageLoader())
    assert list(found) == [4, 8, 16, 20], "the fifth one is large"


def test_a_rebuild_finds_messages_with_gaps_between_them(room: Room) -> None:
    """Entries of ids that are not neighbours are written apart, each with its own moment."""
    ids = [1, 2, 5, 6, 9, 300, 700]
    room.append(*[held(one, 100 + one if one % 2 else 0) for one in ids])
    room.reopen()
    room.checkpoint()
    room.lose_queue_logs()
    assert [finding.event for finding in room.reopen().findings] == ["store.queue_logs_rebuilt"]
    found = room.waiting(7)
    assert sorted(found) == ids
    due_ms = room.store.queues.read_due(7, 1, 701)
    assert {one: due_ms[one - 1] for one in ids} == {one: 100 + one if one % 2 else 0 for one in ids}


@pytest.mark.parametrize(("limit_bytes", "count"), [(0, 1), (2200, 2), (1 << 20, 5)])
def test_scattered_messages_are_read_up_to_a_limit(room: Room, limit_bytes: int, count: int) -> None:
    """The first of the requested messages are read up to the limit, at least one."""
    room.append(*[held(number, 5, body=b"%d" % number * 300) for number in range(1, 400)])
    room.reopen()
    ids = [300, 2, 399, 1, 150]
    found = room.store.slots.read_some(7, ids, room.store.log.segments, limit_bytes, MessageLoader())
    assert list(found) == sorted(ids[:count])
    assert all(message is not None and message.body == b"%d" % number * 300 for number, message in found.items())
