"""Recovery: the layer above gets the state that the log describes."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.slots.redeliveries import ReturnRun
from broker.store.checkpoint import Checkpoint
from broker.store.damage import CorruptStore
from broker.store.record import (
    LEVEL_SHIFT,
    TARGET,
    encode_moved,
    encode_queue_deleted,
    encode_requeued,
    encode_settled,
    encode_topology,
)
from broker.store.recovery import RecoveryProgress
from broker.store.segment import segment_path
from tests.stored_record import read_slot
from tests.unit.store.room import FOLDER, Room


def test_an_empty_folder_is_an_empty_store() -> None:
    """An empty folder recovers nothing, and queue numbers start at 1."""
    recovered = Room().recovered
    assert (recovered.topology, recovered.queues, recovered.next_queue_number) == ([], {}, 1)
    assert recovered.clean


def test_messages_come_back_in_windows() -> None:
    """Recovered ids form slots of the window size, and the next id follows the last."""
    room = Room(window_messages=10)
    room.publish(25, 7)
    recovered = room.reopen()
    state = recovered.queues[7]
    assert [(slot.first, slot.end) for slot in state.slots] == [(1, 11), (11, 21), (21, 26)]
    assert (state.next_id, recovered.messages, recovered.next_queue_number) == (26, 25, 8)
    assert room.waiting(7) == {number: b"%d" % number for number in range(1, 26)}


def test_a_window_ends_at_its_bytes_too() -> None:
    """Slots of large messages are shorter, which bounds the memory of reading one."""
    room = Room(window_bytes=1000)
    room.append(*[room.message(1, body=bytes(600)) for _ in range(6)])
    assert [(slot.first, slot.end) for slot in room.reopen().queues[1].slots] == [(1, 3), (3, 5), (5, 7)]


def test_a_fan_out_is_one_record(room: Room) -> None:
    """Each queue recovers its message from the single record."""
    room.publish(3, 1, 2, 3)
    assert room.reopen().messages == 9
    assert [room.waiting(queue) for queue in (1, 2, 3)] == [{1: b"1", 2: b"2", 3: b"3"}] * 3


def test_settled_messages_stay_away() -> None:
    """Single ids, runs across windows and whole windows are settled, and a fully settled slot is deleted."""
    room = Room(window_messages=10)
    room.publish(40, 1)
    room.append(encode_settled(0, 1, 1, [3, 5]), encode_settled(0, 1, 1, range(8, 25)), encode_settled(0, 1, 9, [1]))
    room.append(encode_settled(0, 1, 1, range(31, 41)))
    recovered = room.reopen()
    assert sorted(room.waiting(1)) == [1, 2, 4, 6, 7, 25, 26, 27, 28, 29, 30]
    assert [slot.first for slot in recovered.queues[1].slots] == [1, 21]
    assert recovered.queues[1].next_id == 41


def test_a_purge_settles_nothing_that_came_after_it() -> None:
    """A checkpoint captures a queue later than it notes its position: what was published between a purge and that
    moment is known when the purge is replayed, and stays.
    """
    room = Room(window_messages=10)
    room.publish(8, 1)
    before = room.store.log.position
    room.append(encode_settled(0, 1, 1, range(1, 3)), encode_settled(0, 1, 1, range(4, 9)))
    room.publish(7, 1)
    purged = room.reopen().queues[1]
    room.store.write_checkpoint(Checkpoint(before, False, [], [purged], 2))
    for _ in range(2):  # the second start has it from a checkpoint at the end
        room.reopen()
        assert sorted(room.waiting(1)) == [3, *range(9, 16)]
        room.checkpoint()


def test_delivery_counts_are_the_last_ones() -> None:
    """A requeue record has absolute counts; counts of settled messages are dropped, those of unknown ids too."""
    room = Room(window_messages=4)
    room.publish(6, 1)
    room.append(
        encode_requeued(0, 1, 1, 2, [ReturnRun(0, 4, 1, 0), ReturnRun(4, 9, 3, 2)]),
        encode_requeued(0, 1, 1, 2, [ReturnRun(0, 1, 2, 1)]),
        encode_settled(0, 1, 1, [3]),
    )
    for _ in range(2):
        first, second = room.reopen().queues[1].slots
        assert first.returns == [ReturnRun(1, 2, 2, 1), ReturnRun(3, 4, 1, 0)]
        assert second.returns == [ReturnRun(0, 1, 1, 0), ReturnRun(1, 2, 3, 2)]


def test_ids_without_a_record_are_settled_holes() -> None:
    """Transient messages took ids of a durable queue; recovery counts these as settled."""
    room = Room(window_messages=10)
    room.append(room.message(1, body=b"1"))
    room.next_ids[1] = 5
    room.append(room.message(1, body=b"5"))
    room.next_ids[1] = 500
    room.append(room.message(1, body=b"500"))
    recovered = room.reopen()
    assert room.waiting(1) == {1: b"1", 5: b"5", 500: b"500"}
    assert [(slot.first, slot.end) for slot in recovered.queues[1].slots] == [(1, 6), (500, 501)]
    assert recovered.messages == 3


def test_a_deleted_queue_does_not_reappear(room: Room) -> None:
    """Records of a deleted queue are ignored after its deletion, and its number is not reused."""
    room.publish(3, 4)
    room.append(encode_queue_deleted(0, 1, 4), encode_settled(0, 1, 4, [1]), room.message(4))
    recovered = room.reopen()
    assert recovered.queues == {}
    assert recovered.next_queue_number == 5
    room.checkpoint()
    assert room.reopen().next_queue_number == 5


def test_the_number_of_a_level_reserves_that_of_its_queue(room: Room) -> None:
    """A level that was made at its first use has a number far above those of queues."""
    room.publish(3, 5)
    room.publish(3, 32 << LEVEL_SHIFT | 4)
    room.append(encode_queue_deleted(0, 1, 32 << LEVEL_SHIFT | 7))
    recovered = room.reopen()
    assert list(recovered.queues) == [5, 32 << LEVEL_SHIFT | 4]
    assert recovered.next_queue_number == 8


def test_topology_changes_come_in_order(room: Room) -> None:
    """Changes of the checkpoint come before those of the log; their queue numbers are not reused."""
    room.append(encode_topology(0, 1, {"change": "queue_declared", "number": 8}))
    room.reopen()
    room.checkpoint()
    room.append(encode_topology(0, 1, {"change": "queue_deleted", "number": 8}))
    recovered = room.reopen()
    assert [change["change"] for change in recovered.topology] == ["queue_declared", "queue_deleted"]
    assert recovered.next_queue_number == 9


def test_recovery_starts_at_the_checkpoint() -> None:
    """Only records after the newest checkpoint are read, and they update its slots."""
    room = Room(window_messages=10)
    room.publish(15, 1)
    room.reopen()
    room.checkpoint()
    room.append(
        encode_settled(0, 1, 1, [1, 2, 3]),
        room.message(1, body=b"16"),
        encode_requeued(0, 1, 1, 15, [ReturnRun(0, 1, 3, 3)]),
    )
    recovered = room.reopen()
    assert recovered.records == 4  # with the mark of the batch
    assert sorted(room.waiting(1)) == list(range(4, 17))
    assert [(slot.first, slot.end) for slot in recovered.queues[1].slots] == [(1, 11), (11, 16), (16, 17)]
    assert recovered.queues[1].slots[1].returns == [ReturnRun(4, 5, 3, 3)]


def test_reading_a_record_twice_changes_nothing(room: Room) -> None:
    """Records that a checkpoint covers are idempotent: a known id does not add a message."""
    room.publish(3, 1)
    room.append(encode_settled(0, 1, 1, [1]))
    room.reopen()
    again = room.store.log.read_span(1 << 32 | 64, 4096)  # the same mark, messages and settlement again
    room.checkpoint()
    room.append(again[60 : again.rindex(b"header") + 7])
    recovered = room.reopen()
    assert sorted(room.waiting(1)) == [2, 3]
    assert recovered.queues[1].next_id == 4


def test_a_moved_record_is_where_the_message_is_read() -> None:
    """After a crash during compaction the copy is read, and the slot refers to the copy's segment."""
    room = Room(segment_bytes=400)
    positions = room.publish(12, 1)
    room.reopen()
    room.checkpoint()
    record = room.store.log.read_span(positions[0], len(room.message(9, body=b"1")))
    (moved,) = room.append(encode_moved(0, record, TARGET.pack(1, 1)))
    recovered = room.reopen()
    slot = recovered.queues[1].slots[0]
    message = read_slot(room.store, 1, slot.first, slot.end, [0])[0]
    assert message is not None
    assert (message.position, message.body) == (moved, b"1")
    assert moved >> 32 in slot.segments
    assert sum(slot.segments.values()) == 12


@pytest.mark.parametrize("moved_id", [1, 3, 5], ids=["first", "middle", "last"])
def test_a_copy_counts_for_a_message_of_the_slot_that_is_being_built(moved_id: int) -> None:
    """A message and its copy may both be replayed, without a slot's end between them: the copy is read."""
    room = Room(window_messages=10)
    positions = room.publish(5, 1)
    record = room.store.log.read_span(positions[moved_id - 1], len(room.message(9, body=b"1")))
    (moved,) = room.append(encode_moved(0, record, TARGET.pack(1, moved_id)))
    positions += room.publish(3, 1)
    positions[moved_id - 1] = moved
    state = room.reopen().queues[1]
    found = [one for slot in state.slots for one in read_slot(room.store, 1, slot.first, slot.end)]
    assert [one and (one.position, one.body) for one in found] == [
        (position, b"%d" % number) for number, position in enumerate(positions, 1)
    ]


def test_clean_is_a_clean_stop_only(room: Room) -> None:
    """A stop is clean after a clean checkpoint and an orderly close, with nothing after either."""
    room.publish(1, 1)
    assert not room.reopen().clean
    room.checkpoint(clean=True)
    assert not room.reopen().clean  # the process ended without closing
    room.checkpoint(clean=True)
    room.store.close(clean=True)
    assert room.reopen().clean
    assert not room.reopen().clean  # opened, perhaps delivering, and killed before anything was appended


def test_progress_ends_at_the_total() -> None:
    """Progress counts bytes and records, and ends at the totals."""
    room = Room(segment_bytes=1000)
    room.publish(50, 1)
    told: list[RecoveryProgress] = []
    recovered = room.reopen(progress=told.append)
    assert told[-1].done_bytes == told[-1].total_bytes > 1000
    assert told[-1].records == recovered.records


def test_positions_are_never_used_twice(room: Room) -> None:
    """Each start begins one segment after all earlier ones."""
    seen = set()
    for _ in range(3):
        seen.update(room.publish(2, 1))
        room.reopen()
    assert len(seen) == 6
    assert len({position >> 32 for position in seen}) == 3


def test_a_refused_start_tells_which_checkpoint_it_skipped(room: Room) -> None:
    """The event has the path of the damaged checkpoint and where recovery starts, also if that fails."""
    room.publish(3, 1)
    for _ in range(2):
        room.checkpoint()
    (older, newest) = sorted(path for path in room.files.contents if path.name.startswith("checkpoint-"))
    room.files.contents[newest].block[20] ^= 1
    room.files.remove(segment_path(FOLDER / "log", room.store.log.active))
    with capture_logs() as events, pytest.raises(CorruptStore, match="it is missing"):
        room.reopen()
    (skipped,) = [event for event in events if event["event"] == "store.checkpoint_skipped"]
    assert (skipped["path"], skipped["reason"]) == (
        str(newest),
        f"the checksum is wrong; recovery starts from {older.name}",
    )
