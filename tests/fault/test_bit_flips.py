"""Single bits flip on disk: synced data is never silently dropped and never delivered changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.store.checkpoint import Checkpoint
from broker.store.damage import CorruptRecord, CorruptStore
from broker.store.memory_files import MemoryFiles
from broker.store.record import TARGET, encode_message, encode_route
from broker.store.recovery import Recovered
from broker.store.segment import HEADER_BYTES, segment_path
from broker.store.store import VhostStore
from tests.fault.store_model import FOLDER
from tests.fault.test_torn_tail import commit, cut_copy
from tests.stored_record import read_slot

ROUTE = encode_route("x", "k")
SEGMENT_BYTES = 1 << 20
MESSAGES = 20
SEGMENT = segment_path(FOLDER / "log", 1)


def open_store(files: MemoryFiles, *, quarantine: bool = False) -> VhostStore:
    """Open the store."""
    store, _ = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True, quarantine=quarantine)
    return store


def write_messages(files: MemoryFiles, *, batches: int = 3) -> tuple[VhostStore, list[tuple[int, int]]]:
    """Write batches of twenty messages to queue 1; return the store and (position, size) of each."""
    store = open_store(files)
    log = store.log
    places = []
    for batch in range(batches):
        for number in range(MESSAGES):
            message_id = batch * MESSAGES + number + 1
            record = encode_message(log.synced, 1, 1, ROUTE, b"h", b"body %d" % message_id, TARGET.pack(1, message_id))
            places.append((log.append(record), len(record)))
        commit(store)
    return store, places


BITS = [range(0, 8, 3), pytest.param(range(8), marks=pytest.mark.torture)]
"""Which bits of each byte flip: some, or all of them."""


def flips(block: bytearray, first: int, end: int, bits: range = range(8)) -> Iterator[tuple[int, int]]:
    """Yield each (offset, bit) with that bit flipped, and flip it back."""
    for offset in range(first, end):
        for bit in bits:
            block[offset] ^= 1 << bit
            yield offset, bit
            block[offset] ^= 1 << bit


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
def test_every_bit_of_twenty_synced_records(bits: range) -> None:
    """A flip below the last synced position makes the start fail with the segment and the record's offset."""
    files = MemoryFiles()
    _, places = write_messages(files)
    block = files.contents[SEGMENT].block
    starts = [position & 0xFFFFFFFF for position, _ in places[:MESSAGES]]
    end = starts[-1] + places[MESSAGES - 1][1]
    for offset, bit in flips(block, starts[0], end, bits):
        record = max(start for start in starts if start <= offset)
        with pytest.raises(CorruptStore) as caught:
            open_store(files)
        assert (caught.value.segment, caught.value.offset) == (1, record), f"bit {bit} of byte {offset}"
    assert open_store(files).log.segments  # all bits are flipped back: it starts


@pytest.mark.fault
@pytest.mark.slow
def test_quarantine_skips_one_record_and_says_so() -> None:
    """With quarantine the broker starts with every record but the damaged one, and reports the loss as a finding."""
    files = MemoryFiles()
    _, places = write_messages(files)
    for number in (0, 7, MESSAGES - 1):
        start = places[number][0] & 0xFFFFFFFF
        block = files.contents[SEGMENT].block
        for offset, bit in flips(block, start, start + places[number][1], range(0, 8, 5)):
            copy = cut_copy(files, len(block))
            store, recovered = VhostStore.open(copy, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True, quarantine=True)
            state = recovered.queues[1]
            found = [
                message.body
                for slot in state.slots
                for message in read_slot(store, 1, slot.first, slot.end, present(slot.settled, slot.end - slot.first))
                if message is not None
            ]
            bodies = [b"body %d" % (place + 1) for place in range(len(places))]
            lost = [body for body in bodies if body not in found]
            (finding,) = recovered.findings
            assert (finding.event, finding.segment, finding.offset) == ("store.quarantined", 1, start)
            assert lost == [bodies[number]], f"bit {bit} of byte {offset}"  # the damaged field may be its length
            assert VhostStore.open(copy, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)[1].findings == []


@pytest.mark.fault
def test_flips_in_the_tail_are_cut() -> None:
    """A flip in the last batch, which may not have been synced, cuts the log exactly there."""
    files = MemoryFiles()
    _, places = write_messages(files)
    original = files.contents[SEGMENT].block
    for number in (2 * MESSAGES, 2 * MESSAGES + 5, 3 * MESSAGES - 1):
        start = places[number][0] & 0xFFFFFFFF
        for _ in flips(original, start, start + places[number][1], range(0, 8, 5)):
            copy = cut_copy(files, len(original))
            _, recovered = VhostStore.open(copy, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
            assert recovered.messages == number
            assert recovered.cut_bytes == len(original) - start


@pytest.mark.fault
def test_flips_in_a_mark_and_in_a_header() -> None:
    """Marks and segment headers are checked like records."""
    files = MemoryFiles()
    _, places = write_messages(files)
    block = files.contents[SEGMENT].block
    mark = (places[MESSAGES - 1][0] & 0xFFFFFFFF) + places[MESSAGES - 1][1]
    for offset, _ in flips(block, mark, mark + 60):
        with pytest.raises(CorruptStore) as caught:
            open_store(files)
        assert caught.value.offset == mark, f"byte {offset}"
    for offset, _ in flips(block, 0, HEADER_BYTES):
        with pytest.raises(CorruptStore) as caught:
            open_store(files)
        assert caught.value.offset == 0, f"byte {offset}"


@pytest.mark.fault
def test_flips_below_the_checkpoint_show_when_the_message_is_read() -> None:
    """Recovery does not read records before the checkpoint; reading a damaged message there raises an error."""
    files = MemoryFiles()
    store, recovered = settle_into_checkpoint(files)
    slot = recovered.queues[1].slots[0]
    block = files.contents[SEGMENT].block
    first = read_slot(store, 1, slot.first, slot.end)[0]
    assert first is not None
    start = first.position & 0xFFFFFFFF
    for _ in flips(block, start, start + first.size, range(0, 8, 5)):
        with pytest.raises(CorruptRecord):
            read_slot(store, 1, slot.first, slot.end, [0])
        assert read_slot(store, 1, slot.first, slot.end, [1])[1] is not None
    block[start] ^= 1
    store = open_store(files)  # recovery does not read this part
    with pytest.raises(CorruptRecord) as caught:
        read_slot(store, 1, slot.first, slot.end)
    assert (caught.value.segment, caught.value.offset) == (1, start)


@pytest.mark.fault
def test_flips_in_a_checkpoint_fall_back_to_the_log() -> None:
    """A damaged checkpoint is reported and skipped; nothing is lost while the log after an older checkpoint exists."""
    files = MemoryFiles()
    settle_into_checkpoint(files)
    (path,) = [path for path in files.contents if path.name.startswith("checkpoint")]
    block = files.contents[path].block
    for offset in range(0, len(block), 3):
        copy = cut_copy(files, len(files.contents[SEGMENT].block))
        copy.contents[path].block[offset] ^= 16
        _, recovered = VhostStore.open(copy, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
        assert [finding.event for finding in recovered.findings] == ["store.checkpoint_skipped"], f"byte {offset}"
        assert path not in copy.contents  # recovery has succeeded without it
        assert recovered.messages == 3 * MESSAGES


@pytest.mark.fault
def test_a_damaged_checkpoint_stays_until_recovery_has_succeeded() -> None:
    """Without the newest checkpoint every start is refused, so the operator can restore a copy of it."""
    files = MemoryFiles()
    settle_into_checkpoint(files)
    (path,) = [path for path in files.contents if path.name.startswith("checkpoint")]
    files.contents[path].block[20] ^= 16
    del files.contents[SEGMENT]
    for _ in range(2):
        with pytest.raises(CorruptStore):
            open_store(files)
        assert path in files.contents
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True, quarantine=True)
    assert "store.checkpoint_skipped" in [finding.event for finding in recovered.findings]
    assert path not in files.contents
    assert len([path for path in files.contents if path.name.startswith("checkpoint")]) == 1
    store.close()
    assert open_store(files).log.segments


@pytest.mark.fault
def test_a_missing_queue_log_is_written_again() -> None:
    """Queue logs are derived data: one that is missing or has no beginning is rebuilt from the log and reported."""
    for damage in ("gone", "no header"):
        files = MemoryFiles()
        settle_into_checkpoint(files)
        (path,) = [path for path in files.contents if path.suffix == ".queue"]
        if damage == "gone":
            del files.contents[path]
        else:
            files.contents[path].block[:24] = bytes(24)
        store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
        assert [finding.event for finding in recovered.findings] == ["store.queue_logs_rebuilt"]
        bodies = [
            message.body
            for slot in recovered.queues[1].slots
            for message in read_slot(store, 1, slot.first, slot.end)
            if message is not None
        ]
        assert bodies == [b"body %d" % message_id for message_id in range(1, 3 * MESSAGES + 1)]


@pytest.mark.fault
def test_a_missing_queue_log_that_replay_begins_again() -> None:
    """When a queue log is missing, messages before and after the checkpoint are written to it again."""
    files = MemoryFiles()
    store, _ = settle_into_checkpoint(files)
    log = store.log
    log.append(encode_message(log.synced, 1, 1, ROUTE, b"h", b"body 61", TARGET.pack(1, 3 * MESSAGES + 1)))
    commit(store)
    store.close()
    (path,) = [path for path in files.contents if path.suffix == ".queue"]
    del files.contents[path]
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    assert [finding.event for finding in recovered.findings] == ["store.queue_logs_rebuilt"]
    bodies = [
        message.body
        for slot in recovered.queues[1].slots
        for message in read_slot(store, 1, slot.first, slot.end)
        if message is not None
    ]
    assert bodies == [b"body %d" % message_id for message_id in range(1, 3 * MESSAGES + 2)]


@pytest.mark.fault
@pytest.mark.parametrize("at", [0, 3, 4, 30, 60])
def test_queue_logs_are_rebuilt_behind_damage(at: int) -> None:
    """Queue logs are missing and one byte of a message is wrong: with quarantine only that message is lost."""
    files = MemoryFiles()
    _, places = write_messages(files, batches=150)
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    queues = list(recovered.queues.values())
    store.write_checkpoint(Checkpoint(store.log.position, False, recovered.topology, queues, 2))
    store.close()
    for path in [path for path in files.contents if path.suffix == ".queue"]:
        del files.contents[path]
    offset = places[10][0] & 0xFFFFFFFF
    files.contents[SEGMENT].block[offset + at] ^= 0x5A
    with pytest.raises(CorruptStore, match="the records of 1 messages of queue 1 from id 11 on are missing") as caught:
        open_store(files)
    assert (caught.value.segment, caught.value.offset) == (1, offset)
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True, quarantine=True)
    assert [finding.event for finding in recovered.findings] == ["store.queue_logs_rebuilt", "store.messages_lost"]
    assert recovered.messages == len(places) - 1
    found = [
        message.body
        for slot in recovered.queues[1].slots
        for message in read_slot(store, 1, slot.first, slot.end, present(slot.settled, slot.end - slot.first))
        if message is not None
    ]
    assert found == [b"body %d" % message_id for message_id in range(1, len(places) + 1) if message_id != 11]


@pytest.mark.fault
@pytest.mark.parametrize("victim", ["first", "middle", "last"])
def test_a_missing_segment_refuses(victim: str) -> None:
    """A missing segment that had been synced makes the start fail; with quarantine the other messages are recovered."""
    files = MemoryFiles()
    store, _ = VhostStore.open(files, FOLDER, segment_bytes=500, sync=True)
    for message_id in range(1, 31):
        record = encode_message(
            store.log.synced, 1, 1, ROUTE, b"h", b"body %d" % message_id, TARGET.pack(1, message_id)
        )
        store.log.append(record)
        commit(store)
    numbers = sorted(store.log.segments)
    missing = {"first": numbers[0], "middle": numbers[2], "last": numbers[-2]}[victim]
    del files.contents[segment_path(FOLDER / "log", missing)]
    with pytest.raises(CorruptStore):
        open_store(files)
    recovered = VhostStore.open(files, FOLDER, segment_bytes=500, sync=True, quarantine=True)[1]
    assert {finding.event for finding in recovered.findings} == {"store.quarantined"}
    assert 20 <= recovered.messages < 30


def present(settled: bytes, length: int) -> list[int]:
    """Return the indexes whose bit is clear."""
    bits = int.from_bytes(settled, "little")
    return [index for index in range(length) if not bits >> index & 1]


def settle_into_checkpoint(files: MemoryFiles) -> tuple[VhostStore, Recovered]:
    """Write sixty messages and a checkpoint after them; return the store, opened again."""
    write_messages(files)
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    store.write_checkpoint(
        Checkpoint(store.log.position, False, recovered.topology, list(recovered.queues.values()), 2)
    )
    store.close()
    return VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
