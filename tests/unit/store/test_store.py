"""The store's facade: paging, references, checkpoints and freed space."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.store.checkpoint import Checkpoint, QueueState, SlotState
from broker.store.compaction import RECORD_MIN_BYTES, SlotReference, plan_relocation
from broker.store.damage import CorruptRecord
from broker.store.files import File
from broker.store.memory_files import MemoryFile, MemoryFiles
from broker.store.message_log import APART_BYTES, MessageLog
from broker.store.queue_entry import Entries
from broker.store.queue_log import CHUNK_IDS
from broker.store.reading import COPY_MAX_BYTES
from broker.store.record import HEAD_BYTES, PERSISTENT, TARGET, Recorded, encode_message, encode_moved, encode_settled
from broker.store.segment import segment_path
from broker.store.stored_slots import CACHED_MAX_BYTES
from tests.stored_record import StoredMessages, read_slot
from tests.unit.store.room import FOLDER, ROUTE, Room


def state(number: int, first: int, end: int, *segments: int) -> QueueState:
    """Return a queue with one slot and nothing settled."""
    return QueueState(number, end, [SlotState(first, end, segments=dict.fromkeys(segments, 1))])


def checkpoint(room: Room, *queues: QueueState) -> None:
    """Write a checkpoint at the log's end."""
    room.store.write_checkpoint(Checkpoint(room.store.log.position, False, [], list(queues), 10))


def test_files_stay_open_for_reading_until_the_broker_is_at_rest(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads share open files of the log and of the queue logs; once these are closed, a read opens them again."""
    positions = room.publish(6, 1, 2)
    room.store.queues.write(1, 1, (positions, [len(room.message(1, 2, body=b"1"))] * 6))
    room.store.queues.sync()
    opened: list[str] = []

    def open_file(self: MemoryFiles, path: Path, **how: bool) -> File:
        opened.append(path.parent.name)
        return opens(self, path, **how)

    opens = MemoryFiles.open
    monkeypatch.setattr(MemoryFiles, "open", open_file)
    for times in (1, 1, 2):
        if times == 2:
            room.store.close_readers()
        assert read_slot(room.store, 1, 1, 7, [5])[5] is not None
        assert sorted(opened) == ["log"] * times + ["queues"] * times


@pytest.mark.parametrize("segment_bytes", [1 << 20, 50_000])
def test_a_large_body_is_recorded_as_it_is(segment_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a large body is that of any other; the log holds the body itself, and writes it without a copy."""
    room = Room(segment_bytes=segment_bytes)
    written: list[bytes] = []

    def write_at(self: MemoryFile, offset: int, block: bytes) -> None:
        written.append(block)
        wrote(self, offset, block)

    wrote = MemoryFile.write_at
    monkeypatch.setattr(MemoryFile, "write_at", write_at)
    messages: list[Recorded] = []
    for size in (APART_BYTES - 1, APART_BYTES, 200_000, 1):
        message = Recorded()
        message.timestamp_ms, message.header, message.body = 1, b"%d" % size, b"b" * size
        messages.append(message)
    synced = room.store.log.synced
    for number, message in enumerate(messages, 5):
        room.store.recorder.record(message, PERSISTENT, ROUTE, TARGET.pack(1, number)[:-8], number)
    room.commit()
    blocks = {id(block) for block in written}
    assert [id(message.body) in blocks for message in messages] == [False, True, True, False]
    for number, message in enumerate(messages, 5):
        content = (message.header, message.body, TARGET.pack(1, number))
        record = encode_message(synced, 1, PERSISTENT, ROUTE, *content)
        assert room.store.log.read_span(message.position, message.record_bytes) == record


def test_spilled_and_logged_messages_share_a_slot(room: Room) -> None:
    """Transient messages of a durable queue are in the spill; a slot is read from both places."""
    (logged,) = room.publish(1, 1)
    record = encode_message(0, 1, 0, ROUTE, b"header", b"transient", TARGET.pack(1, 2))
    spilled = room.store.spill.extend([record])[0]
    room.store.queues.write(1, 1, ([logged, spilled], [len(room.message(9, body=b"1")), len(record)]))
    assert [one and one.body for one in read_slot(room.store, 1, 1, 3)] == [b"1", b"transient"]


def test_a_slot_in_the_page_cache_is_read_at_once() -> None:
    """Contiguous records in the log or the spill are read without the disk; the rest is left to the usual read."""
    room = Room(segment_bytes=8 << 20)
    store, maker = room.store, StoredMessages()
    positions = room.publish(8, 1)
    size = len(room.message(9, body=b"1"))
    store.queues.write(1, 1, (positions, [size] * 8))
    found = store.slots.read_cached(1, 1, 9, [1, 2, 7], maker)
    assert [one and one.body for one in found] == [None, b"2", b"3", None, None, None, None, b"8"]
    transient = [encode_message(0, 1, 0, ROUTE, b"header", b"t", TARGET.pack(2, number)) for number in range(1, 5)]
    store.queues.write(2, 1, (store.spill.extend(transient), list(map(len, transient))), durable=False)
    assert [one and one.body for one in store.slots.read_cached(2, 1, 5, range(4), maker)] == [b"t"] * 4
    store.queues.write(3, 1, ([positions[0], store.spill.extend([transient[0]])[0]], [size, len(transient[0])]))
    store.queues.write(4, 1, (positions[::-1], [size] * 8))
    store.queues.write(5, CHUNK_IDS - 1, (positions, [size] * 8))
    large = room.message(6, body=bytes(CACHED_MAX_BYTES))
    store.queues.write(6, 1, (room.append(large), [len(large)]))
    store.queues.write(7, 1, ([positions[0], 0], [size, 0]))
    ids = (1, 3, 0, 2)  # the second one lies beyond the others
    records = [encode_message(0, 1, 1, ROUTE, b"header", b"b", TARGET.pack(8, one)) for one in ids]
    records[2] = large
    first_one, third, _, second = room.append(*records)
    store.queues.write(8, 1, ([first_one, second, third], [len(records[0])] * 3))
    assert all(read_slot(store, 8, 1, 4))
    refused = [(3, 1, 2), (4, 1, 8), (5, CHUNK_IDS - 1, 8), (6, 1, 1), (7, 1, 2), (8, 1, 3), (9, 1, 1)]
    for queue, first, count in refused:
        assert store.slots.read_cached(queue, first, first + count, range(count), maker) == [], queue
    store.queues.write(1, 3, ([positions[2] + 1], [size]))  # a damaged record, as far as can be seen
    assert store.slots.read_cached(1, 1, 9, range(8), maker) == []
    assert all(read_slot(store, 1, 1, 9))


def test_an_entry_of_another_message_is_found_out(room: Room) -> None:
    """A record with another id of the queue, or of another queue in the spill, is not the message."""
    positions = room.publish(2, 1)
    size = len(room.message(9, body=b"1"))
    room.store.queues.write(1, 1, (positions[1:], [size]))
    with pytest.raises(CorruptRecord, match="message 1 of queue 1"):
        read_slot(room.store, 1, 1, 2, None, ())
    room.store.queues.write(5, 1, (positions[1:], [size]))
    with pytest.raises(CorruptRecord, match="message 1 of queue 5"):
        read_slot(room.store, 5, 1, 2)
    (spilled,) = room.store.spill.extend([room.message(1)])
    room.store.queues.write(5, 1, ([spilled], [len(room.message(1))]))
    assert read_slot(room.store, 5, 1, 2)[0] is not None


def test_an_unreadable_message_is_none_in_quarantine() -> None:
    """With quarantine a damaged message is left out and the broker continues; without, the read raises."""
    room = Room(quarantine=True)
    positions = room.publish(2, 1)
    size = len(room.message(9, body=b"1"))
    room.store.queues.write(1, 1, ([positions[0] + 1, positions[1], 0], [size, size, 0]))
    assert [one and one.body for one in read_slot(room.store, 1, 1, 4, None, ())] == [None, b"2", None]


@pytest.mark.parametrize("body_bytes", [1, COPY_MAX_BYTES])
def test_a_flipped_byte_is_found_out(body_bytes: int) -> None:
    """The checksum covers short and long records to the last byte, and the valid record passes."""
    room = Room(quarantine=True)
    record = room.message(1, body=bytes(body_bytes))
    good, bad = room.append(record, record[:-1] + b"x")
    room.store.queues.write(1, 1, ([good], [len(record)]))
    assert read_slot(room.store, 1, 1, 2)[0] is not None
    room.store.queues.write(1, 1, ([bad], [len(record)]))
    assert read_slot(room.store, 1, 1, 2, None, ()) == [None]


def test_a_message_of_many_queues_is_found_by_each() -> None:
    """At any place among the targets, a queue's own id is compared and no other queue's."""
    room = Room(quarantine=True)
    room.next_ids = {1: 1, 2: 8, 3: 9}
    record = room.message(1, 2, 3)
    (position,) = room.append(record)
    entry = ([position], [len(record)])
    for queue, message_id in ((1, 1), (2, 8), (3, 9)):
        room.store.queues.write(queue, message_id, entry)
        assert read_slot(room.store, queue, message_id, message_id + 1)[0] is not None
    room.store.queues.write(2, 9, entry)
    assert read_slot(room.store, 2, 9, 10) == [None]


def count_reads(room: Room) -> list[int]:
    """Return a list that collects the size of each read from the log."""
    calls = []
    read = room.store.log.read_span

    def counted(position: int, size: int) -> bytes:
        calls.append(size)
        return read(position, size)

    room.store.log.read_span = counted  # type: ignore[method-assign]
    return calls


def test_body_sizes_are_those_of_the_bodies(room: Room, log: MessageLog) -> None:
    """Sizes are right for single records, transactions, moved records and the spill."""
    records = [room.message(1, body=bytes(size)) for size in (0, 1, 300, 70_000)]
    positions = [log.append(records[0])]
    with log.group():
        positions += [log.append(record) for record in records[1:]]
    moved = encode_moved(0, room.message(1, 9, body=bytes(17)), TARGET.pack(1, 5))
    positions.append(log.append(moved))
    room.commit()
    spilled = encode_message(0, 1, 0, ROUTE, b"header", bytes(5), b"")
    positions.append(room.store.spill.extend([spilled])[0])
    room.store.queues.write(1, 1, ([*positions, 0], [*map(len, [*records, moved, spilled]), 0]))
    assert room.store.slots.body_sizes(1, 1, 7) == [0, 1, 300, 70_000, 17, 5]
    assert room.store.slots.body_sizes(1, 2, 8, [4, 2, 0]) == [1, 0, 70_000, 0, 5, 0]
    with pytest.raises(CorruptRecord, match="message 7 of queue 1"):
        room.store.slots.body_sizes(1, 1, 8)


@pytest.mark.interpreted("a method of the log is replaced")
def test_body_sizes_read_heads_only(room: Room) -> None:
    """Large bodies are not read; small ones are, where that takes fewer calls."""
    for queue, size in ((1, 10), (2, 100_000)):
        records = [room.message(queue, body=bytes(size)) for _ in range(10)]
        room.store.queues.write(queue, 1, (room.append(*records), [len(record) for record in records]))
    calls = count_reads(room)
    assert room.store.slots.body_sizes(1, 1, 11) == [10] * 10
    assert len(calls) == 1
    calls.clear()
    assert room.store.slots.body_sizes(2, 1, 11) == [100_000] * 10
    assert calls == [HEAD_BYTES] * 10


def test_body_sizes_of_what_is_no_message() -> None:
    """A wrong entry is detected; with quarantine it counts nothing."""
    for quarantine in (False, True):
        room = Room(quarantine=quarantine)
        positions = room.publish(2, 1)
        settled = encode_settled(0, 1, 1, [1])
        (other,) = room.append(settled)
        size = len(room.message(9, body=b"1"))
        end = room.store.log.position
        for position, wrong in (
            (positions[0] + 1, size),
            (positions[0], size + 1),
            (other, len(settled)),
            (end - 5, size),
        ):
            room.store.queues.write(1, 1, ([position, positions[1]], [wrong, size]))
            if quarantine:
                assert room.store.slots.body_sizes(1, 1, 3, None, ()) == [0, 1]
            else:
                with pytest.raises(CorruptRecord, match="message 1 of queue 1"):
                    room.store.slots.body_sizes(1, 1, 3, None, ())
            assert room.store.slots.body_sizes(1, 1, 3) == [1, 1]  # it is in the log


def segments_on_disk(room: Room) -> list[int]:
    """Return the numbers of the segments in the folder, which are those that the log knows."""
    numbers = sorted(room.store.log.segments)
    names = [segment_path(FOLDER, number).name for number in numbers]
    assert sorted(room.files.list(FOLDER / "log")) == names
    return numbers


def test_a_segment_goes_when_nobody_needs_it() -> None:
    """A segment is removed when neither a slot nor a kept checkpoint refers to it; the active one is kept."""
    room = Room(segment_bytes=500)
    room.publish(20, 1)
    log = room.store.log
    numbers = sorted(log.segments)
    log.add_live(numbers[1], 1)
    checkpoint(room)
    assert segments_on_disk(room) == numbers  # without this checkpoint, recovery would need the whole log
    checkpoint(room, state(1, 1, 21, numbers[2]))
    assert segments_on_disk(room) == [numbers[1], numbers[2], log.active]
    log.drop_live(numbers[1], 1)
    checkpoint(room)
    assert segments_on_disk(room) == [numbers[2], log.active]  # the older checkpoint refers to one of them
    checkpoint(room)
    assert segments_on_disk(room) == [log.active]


def test_what_only_the_older_checkpoint_needs_is_told() -> None:
    """A store says whether another checkpoint would free space, of segments or of queue logs."""
    room = Room(segment_bytes=500)
    checkpoint(room)
    assert not room.store.holds_back
    room.publish(20, 1)
    checkpoint(room)
    assert room.store.holds_back
    checkpoint(room)
    assert not room.store.holds_back
    room.store.queues.write(1, 1, ([1 << 32 | 64], [10]))
    checkpoint(room)
    room.store.forget_queue(1, at_once=False)
    room.publish(1, 9)
    checkpoint(room)
    assert room.store.holds_back
    checkpoint(room)
    assert not room.store.holds_back
    assert room.files.list(FOLDER / "queues") == []


def test_the_file_of_a_deleted_queue_goes_although_the_log_grows_no_more(room: Room) -> None:
    """A checkpoint right after the record of a deletion knows of it: the file goes when the one before is given up."""
    room.publish(2, 1)
    room.store.queues.write(1, 1, ([1 << 32 | 64], [10]))
    checkpoint(room)
    room.publish(1, 9)  # in place of the record of the deletion
    room.store.forget_queue(1, at_once=False, recorded=True)
    checkpoint(room)
    assert room.store.holds_back
    checkpoint(room)
    assert not room.store.holds_back
    assert room.files.list(FOLDER / "queues") == []


def test_space_is_saved_by_giving_up_the_older_checkpoint() -> None:
    """With too little disk space the older checkpoint goes, which is logged once, and only one is kept meanwhile."""
    room = Room(segment_bytes=500)
    checkpoint(room)
    room.publish(20, 1)
    checkpoint(room)
    segments = segments_on_disk(room)
    assert len(segments) > 3
    with capture_logs() as events:
        room.store.save_space(on=True)
        checkpoint(room)
    (event,) = events
    assert (event["event"], event["segments"]) == ("checkpoint.given_up", len(segments) - 1)
    assert event["freed_bytes"] > 500
    assert segments_on_disk(room) == [room.store.log.active]
    assert len([name for name in room.files.list(FOLDER) if name.startswith("checkpoint-")]) == 1
    room.publish(20, 1)
    checkpoint(room)
    assert segments_on_disk(room) == [room.store.log.active]
    room.store.save_space(on=False)
    for kept in (2, 2):
        room.publish(20, 1)
        checkpoint(room)
        assert len([name for name in room.files.list(FOLDER) if name.startswith("checkpoint-")]) == kept
    assert len(segments_on_disk(room)) > 3


def test_what_the_last_checkpoint_names_stays() -> None:
    """A crash may restore a slot that was settled after the snapshot, so its segment waits for the next checkpoint."""
    room = Room(segment_bytes=500)
    room.publish(20, 1)
    checkpoint(room)
    first = min(room.store.log.segments)
    room.store.log.add_live(first, 1)
    snapshot = Checkpoint(room.store.log.position, False, [], [state(1, 1, 21, first)], 10)
    room.store.log.drop_live(first, 1)
    room.store.write_checkpoint(snapshot)
    assert first in room.store.log.segments


def test_a_queue_log_goes_behind_two_checkpoints(room: Room) -> None:
    """The file of a deleted slot or queue is kept until every kept checkpoint was taken after the deletion."""
    room.publish(2, 1)
    room.store.queues.write(1, 1, ([1 << 32 | 64, 1 << 32 | 74], [10, 10]))
    room.store.queues.write(2, 1, ([1 << 32 | 64], [10]))
    room.store.drop_entries(1, 1, 2, at_once=False)
    room.store.forget_queue(2, at_once=False)
    checkpoint(room)
    assert len(room.files.list(FOLDER / "queues")) == 2  # this checkpoint precedes the deletion of queue 2
    room.publish(1, 1)
    checkpoint(room)
    assert len(room.files.list(FOLDER / "queues")) == 2
    checkpoint(room)
    assert room.files.list(FOLDER / "queues") == ["0000000001-00000000.queue"]
    room.store.drop_entries(1, 2, 3, at_once=False)
    room.publish(1, 1)
    checkpoint(room)
    checkpoint(room)
    assert room.files.list(FOLDER / "queues") == []


def test_a_queue_log_that_recovery_gave_up_waits_as_well(room: Room) -> None:
    """Entries that a start does not need are kept as long as its checkpoint, which refers to them."""
    room.publish(2, 1)
    recovered = room.reopen()
    checkpoint(room, *recovered.queues.values())
    room.append(encode_settled(0, 1, 1, [1, 2]))
    room.reopen()
    room.store.forget_queue(9, at_once=True)  # a queue that no checkpoint knows takes nothing else with it
    room.publish(1, 9)
    checkpoint(room)
    assert len(room.files.list(FOLDER / "queues")) == 1
    checkpoint(room)
    assert room.files.list(FOLDER / "queues") == []


def test_a_chunk_written_again_stays(room: Room) -> None:
    """A file whose entries were all dropped is kept if new ids are written before the checkpoint."""
    room.store.queues.write(1, 1, ([1 << 32 | 64], [10]))
    room.store.drop_entries(1, 1, 2, at_once=False)
    room.publish(1, 9)
    room.store.queues.write(1, 2, ([1 << 32 | 74], [20]))
    checkpoint(room)
    assert room.files.list(FOLDER / "queues") == ["0000000001-00000000.queue"]


def test_a_checkpoint_may_not_run_ahead(room: Room) -> None:
    """A checkpoint at a position that is not on disk is refused."""
    room.store.log.append(room.message(1))
    with pytest.raises(RuntimeError, match="ahead"):
        checkpoint(room)


def test_a_recovered_queue_nobody_declares_is_discarded() -> None:
    """Discarding drops references and entries, and the next checkpoints free the space."""
    room = Room(segment_bytes=500)
    room.publish(20, 3)
    recovered = room.reopen()
    assert room.store.log.live
    room.store.discard(recovered.queues[3])
    assert not room.store.log.live
    room.publish(1, 9)
    checkpoint(room)
    checkpoint(room)
    assert room.files.list(FOLDER / "queues") == []
    assert len(room.store.log.segments) == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_relocation_frees_a_pinned_segment(grouped: bool) -> None:
    """The few live messages of a segment, alone or in transactions, are copied to the tail as separate records; it goes
    when no checkpoint needs it.
    """
    room = Room(segment_bytes=2000)
    for _ in range(12):
        with room.store.log.group() if grouped else nullcontext():
            for _ in range(5):
                room.store.log.append(room.message(1, body=b"%d" % room.next_ids.get(1, 1)))
    room.commit()
    room.append(encode_settled(0, 1, 1, [number for number in range(1, 61) if number not in (3, 5)]))
    recovered = room.reopen()
    slot = recovered.queues[1].slots[0]
    checkpoint(room, *recovered.queues.values())
    (pinned,) = room.store.compactable()[:1]
    relocation = room.store.plan_relocation(pinned, [room.reference(1, 3, 5)], 0.5)
    assert relocation is not None
    room.store.append_relocation(relocation)
    with pytest.raises(RuntimeError, match="not on disk"):
        room.store.finish_relocation(relocation)
    room.commit()
    with pytest.raises(RuntimeError, match="not finished"):
        checkpoint(room)
    moves = room.store.finish_relocation(relocation)
    assert [(move.message_id, move.origin >> 32) for move in moves] == [(3, pinned), (5, pinned)]
    assert [one and one.body for one in read_slot(room.store, 1, 1, 6, [2, 4])] == [None, None, b"3", None, b"5"]
    room.store.drop_live(pinned, 1)
    after = moves[0].position >> 32
    room.store.add_live(after, 1)
    slot.segments = {after: 2}
    checkpoint(room, *recovered.queues.values())
    assert pinned in room.store.log.segments  # the older checkpoint names it
    assert pinned not in room.store.compactable()
    checkpoint(room, *recovered.queues.values())
    assert pinned not in room.store.log.segments
    room.reopen()
    assert room.waiting(1) == {3: b"3", 5: b"5"}


def test_neighbours_move_with_one_write() -> None:
    """The places of messages that were copied are written in runs, also where several queues shared the segment."""
    room = Room(segment_bytes=20_000)
    for _ in range(200):
        room.publish(1, 1)
        room.publish(1, 2)
    room.append(*[encode_settled(0, 1, queue, [*range(1, 11), 20, *range(51, 201)]) for queue in (1, 2)])
    recovered = room.reopen()
    checkpoint(room, *recovered.queues.values())
    (pinned,) = room.store.compactable()[:1]
    kept = [number for number in range(11, 51) if number != 20]
    relocation = room.relocate(pinned, *(room.reference(queue, *kept) for queue in (1, 2)), share=0.9)
    before = room.store.queues.written
    moves = room.store.finish_relocation(relocation)
    assert len(moves) == 2 * len(kept)
    assert room.store.queues.written - before == 4  # each queue's runs before and behind message 20
    for queue in (1, 2):
        found = read_slot(room.store, queue, kept[0], kept[-1] + 1, [one - kept[0] for one in kept])
        assert sum(one is not None for one in found) == len(kept)


@pytest.mark.parametrize("crash", [False, True])
def test_a_copy_serves_each_queue_that_shares_its_record(crash: bool) -> None:
    """A message that several queues still need is copied once, for all of them, and for none that has settled it."""
    room = Room(segment_bytes=20_000)
    queues = (1, 2, 3)
    room.publish(600, *queues)
    needed = {1: range(11, 31), 2: [*range(21, 41), 77], 3: [15, 77]}
    for queue, ids in needed.items():
        room.append(encode_settled(0, 1, queue, [one for one in range(1, 601) if one not in ids]))
    recovered = room.reopen()
    checkpoint(room, *recovered.queues.values())
    pinned = min(room.store.compactable())
    before = room.store.log.position
    relocation = room.relocate(pinned, *(room.reference(queue, *ids) for queue, ids in needed.items()), share=0.9)
    if not crash:
        assert len(room.store.finish_relocation(relocation)) == sum(map(len, needed.values()))
    for _ in range(2):
        places: dict[int, set[int]] = {}
        for queue, ids in needed.items():
            found = read_slot(room.store, queue, 1, 78, [one - 1 for one in ids])
            assert {at + 1: one.body for at, one in enumerate(found) if one} == {one: b"%d" % one for one in ids}
            for at, one in enumerate(found):
                if one is not None and not crash:
                    assert one.position >= before
                    places.setdefault(at + 1, set()).add(one.position)
        assert all(len(positions) == 1 for positions in places.values())
        crash = False
        room.reopen()
        assert {queue: sorted(room.waiting(queue)) for queue in queues} == {q: list(ids) for q, ids in needed.items()}


def test_a_full_segment_is_not_relocated() -> None:
    """A segment that is mostly live is left alone, and checked again when fewer slots need it."""
    room = Room(segment_bytes=2000, window_messages=5)
    room.publish(60, 1)
    recovered = room.reopen()
    checkpoint(room, *recovered.queues.values())
    segment = room.store.compactable()[-1]
    holders = [slot for slot in recovered.queues[1].slots if segment in slot.segments]
    references = [
        SlotReference(1, slot.first, slot.end, range(slot.end - slot.first), frozenset(slot.segments))
        for slot in holders
    ]
    assert room.store.plan_relocation(segment, references, 0.5) is None
    assert segment not in room.store.compactable()
    room.store.drop_live(segment, room.store.log.live[segment] - 1)
    assert segment in room.store.compactable()


def test_a_segment_with_many_messages_is_refused_by_their_number() -> None:
    """If the messages alone need more than the share, no entry of the queue log is read."""

    def unread(_slot: SlotReference) -> Entries:
        raise AssertionError("an entry was read")

    def slots(count: int, *segments: int) -> list[SlotReference]:
        return [SlotReference(1, 1, 11, range(10), frozenset(segments))] * count

    def no_span(_position: int, _size: int) -> bytes:
        raise AssertionError("a record was read")

    least = 10 * RECORD_MIN_BYTES
    assert plan_relocation(0, no_span, unread, 1, slots(3, 1), 3 * least - 1) is None
    for doubtful in (slots(3, 1), slots(4, 1, 2)):  # few enough; it is not known which of the two segments has them
        with pytest.raises(AssertionError, match="an entry was read"):
            plan_relocation(0, no_span, unread, 1, doubtful, 3 * least)


def test_a_message_acked_during_its_relocation_stays_away() -> None:
    """A copy of a message that was settled meanwhile does not restore the message."""
    room = Room(segment_bytes=500)
    room.publish(20, 1)
    recovered = room.reopen()
    checkpoint(room, *recovered.queues.values())
    segment = min(recovered.queues[1].slots[0].segments)
    relocation = room.store.plan_relocation(segment, [room.reference(1)], 1.0)
    assert relocation is not None
    room.append(encode_settled(0, 1, 1, [1]))
    room.store.append_relocation(relocation)
    room.commit()
    room.reopen()
    assert 1 not in room.waiting(1)
    assert len(room.waiting(1)) == 19
