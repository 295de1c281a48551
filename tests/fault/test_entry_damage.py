"""Damaged entries of queue logs: the log gives the place of a message before it is declared lost or dropped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import current_thread
from typing import Any, Final

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.store.checkpoint import Checkpoint
from broker.store.compaction import SlotReference
from broker.store.damage import CorruptRecord
from broker.store.memory_files import MemoryFiles
from broker.store.queue_entry import CELL_IDS, ENTRY_BYTES, pack_entries, unpack_entries
from broker.store.record import HEAD_BYTES, TARGET, encode_message, encode_moved, encode_route, encode_settled
from broker.store.recovery import Recovered
from broker.store.store import VhostStore
from tests.cold_files import ColdFiles
from tests.deadline import DEADLINE_S, wait_until_async
from tests.fault.store_model import FOLDER
from tests.fault.test_bit_flips import flips, present
from tests.fault.test_torn_tail import commit
from tests.gated_files import GatedFiles, of_log
from tests.raw_talk import Sections, connect, declare, mortal_broker, numbered, publish, receive, talk
from tests.stored_record import read_slot

ROUTE: Final = encode_route("x", "k")
FORMATS: Final = ["group", "single"]
KEPT: Final = (3, 5)
QUEUE: Final[Sections] = {"slots": {"window_messages": 100}}


def reopened(files: MemoryFiles, *, quarantine: bool = False) -> tuple[VhostStore, Recovered]:
    """Open the store as after kill -9."""
    return VhostStore.open(files, FOLDER, segment_bytes=2000, sync=True, quarantine=quarantine)


def checkpoint(store: VhostStore, recovered: Recovered) -> None:
    """Write a checkpoint of the recovered state."""
    queues = list(recovered.queues.values())
    store.write_checkpoint(Checkpoint(store.log.position, False, recovered.topology, queues, 2))


def write_messages(files: MemoryFiles, count: int, *, kept: tuple[int, ...] = ()) -> tuple[VhostStore, Recovered]:
    """Write messages to queue 1, settle all but those kept if any are named, and write a checkpoint."""
    store, _ = reopened(files)
    log = store.log
    for number in range(1, count + 1):
        log.append(encode_message(log.synced, 1, 1, ROUTE, b"h", b"%d" % number, TARGET.pack(1, number)))
    if kept:
        log.append(encode_settled(0, 1, 1, [number for number in range(1, count + 1) if number not in kept]))
    commit(store)
    store.close()
    store, recovered = reopened(files)
    checkpoint(store, recovered)
    return store, recovered


def queue_log(files: MemoryFiles, form: str) -> bytearray:
    """Return the bytes of the one queue log, with a single entry for each message unless `form` is `group`."""
    (path,) = [path for path in files.contents if path.suffix == ".queue"]
    return rewrite(files, path, form)


def rewrite(files: MemoryFiles, path: Path, form: str, queue: int = 1) -> bytearray:
    """Return the bytes of a queue log in another form."""
    block = files.contents[path].block
    if form == "group":
        return block
    places = bytes(block[ENTRY_BYTES:])
    count = len(places) // ENTRY_BYTES
    cells = places.ljust(-(-count // CELL_IDS) * CELL_IDS * ENTRY_BYTES, b"\0")
    positions, sizes = unpack_entries(queue, 0, cells, 0, count)
    for index in range(count):
        entry = pack_entries(queue, index, (positions[index : index + 1], sizes[index : index + 1]))
        block[(index + 1) * ENTRY_BYTES : (index + 2) * ENTRY_BYTES] = entry
    return block


def bodies(store: VhostStore, recovered: Recovered) -> list[int]:
    """Return the unsettled messages, identified by their bodies."""
    return [
        int(message.body)
        for slot in recovered.queues[1].slots
        for message in read_slot(
            store, 1, slot.first, slot.end, present(slot.settled, slot.end - slot.first), slot.segments
        )
        if message is not None
    ]


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_flips_in_a_queue_log_cost_nothing(form: str) -> None:
    """Whichever bit of an entry flips, every message is read, and the entry is restored."""
    files = MemoryFiles()
    store, recovered = write_messages(files, 12)
    block = queue_log(files, form)
    slot = recovered.queues[1].slots[0]
    for offset, bit in flips(block, ENTRY_BYTES, ENTRY_BYTES * 14):
        with capture_logs() as events:
            assert bodies(store, recovered) == list(range(1, 13)), f"bit {bit} of byte {offset}"
            assert store.slots.body_sizes(1, 1, 13, None, slot.segments) == [
                len(str(number)) for number in range(1, 13)
            ]
        assert {event["event"] for event in events} <= {"store.entries_rebuilt"}
        before = bytes(block)
        store.slots.repair()
        if before != bytes(block):
            block[offset] ^= 1 << bit  # `flips` flips it back
            assert bodies(store, recovered) == list(range(1, 13))


@pytest.mark.fault
@pytest.mark.parametrize("form", FORMATS)
def test_whole_entries_are_not_rebuilt(form: str) -> None:
    """A start with whole entries writes, searches and reports nothing."""
    files = MemoryFiles()
    store, _ = write_messages(files, 30)
    before = bytes(queue_log(files, form))
    store.close()
    with capture_logs() as events:
        store, recovered = reopened(files)
        assert bodies(store, recovered) == list(range(1, 31))
        store.slots.repair()
    assert events == []
    assert bytes(queue_log(files, "group")) == before


@pytest.mark.fault
@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_entry_does_not_refuse_the_start(form: str) -> None:
    """Recovery that reads entries finds the record of a damaged one in the log, and reports it."""
    files = MemoryFiles()
    store, recovered = write_messages(files, 12)
    record = store.log.read_span(1 << 32 | 64 + 60, len(encode_message(0, 1, 1, ROUTE, b"h", b"1", TARGET.pack(1, 1))))
    store.log.append(encode_moved(0, record, TARGET.pack(1, 1)))  # a copy of message 1, so recovery reads the window
    commit(store)
    store.close()
    block = queue_log(files, form)
    for byte in (0, 4, 8, 11):  # in the entry of message 7
        block[8 * ENTRY_BYTES + byte] ^= 0x80
        copy = MemoryFiles()
        copy.folders = set(files.folders)
        for path, content in files.contents.items():
            copy.open(path, create=True).write_at(0, bytes(content.block))
        store, recovered = reopened(copy)
        assert [finding.event for finding in recovered.findings] == ["store.queue_logs_rebuilt"]
        assert "1 damaged entries were written again" in recovered.findings[0].reason
        assert bodies(store, recovered) == list(range(1, 13))
        block[8 * ENTRY_BYTES + byte] ^= 0x80


def compact(store: VhostStore, recovered: Recovered) -> bool:
    """Relocate the first segment as the compactor does, and write checkpoints; return whether the segment is gone."""
    slot = recovered.queues[1].slots[0]
    (segment, *_) = store.compactable()
    indexes = present(slot.settled, slot.end - slot.first)
    reference = SlotReference(1, slot.first, slot.end, indexes, frozenset(slot.segments))
    relocation = store.plan_relocation(segment, [reference], 0.5)
    if relocation is not None:
        store.append_relocation(relocation)
        commit(store)
        for move in store.finish_relocation(relocation):
            slot.segments[move.position >> 32] = 1
            store.add_live(move.position >> 32, 1)
        del slot.segments[segment]
        store.drop_live(segment, 1)
    for _ in range(2):  # the older of the two that are kept may name it
        checkpoint(store, recovered)
    return segment not in store.log.segments


def second_segment(files: MemoryFiles) -> tuple[VhostStore, Recovered]:
    """Return a store with two needed messages in the first segment and another one in the second."""
    return write_messages(files, 30, kept=(*KEPT, 28))


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_compaction_loses_no_message_to_a_flipped_bit(form: str) -> None:
    """Whichever bit of a needed message's entry flips, its segment is removed only after the message was copied."""
    for byte in range(24):
        for bit in range(8):
            files = MemoryFiles()
            store, recovered = second_segment(files)
            block = queue_log(files, form)
            place = ((KEPT[0] + 1) * ENTRY_BYTES) + byte
            block[place] ^= 1 << bit
            assert compact(store, recovered), f"bit {bit} of byte {byte}"
            store.close()
            store, recovered = reopened(files)
            assert bodies(store, recovered) == [*KEPT, 28], f"bit {bit} of byte {byte}"


@pytest.mark.fault
@pytest.mark.parametrize("form", FORMATS)
def test_an_entry_that_leads_to_another_segment_is_damaged(form: str) -> None:
    """The entry of another message, in another segment of the slot, does not free this segment."""
    files = MemoryFiles()
    store, recovered = second_segment(files)
    block = queue_log(files, form)
    (wrong, right) = ((number + 1) * ENTRY_BYTES for number in (KEPT[0], 28))
    block[wrong : wrong + ENTRY_BYTES] = block[right : right + ENTRY_BYTES]
    assert compact(store, recovered)
    store.close()
    assert bodies(*reopened(files)) == [*KEPT, 28]


@pytest.mark.fault
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("entry", ["whole", "damaged"])
def test_a_segment_stays_while_a_message_of_it_is_not_accounted_for(form: str, entry: str) -> None:
    """When the record of a needed message is damaged, its segment is kept and reported, whatever its entry says."""
    files = MemoryFiles()
    store, recovered = second_segment(files)
    block = queue_log(files, form)
    place = (KEPT[0] + 1) * ENTRY_BYTES
    offset = store.log.read_span(1 << 32, 2000).index(TARGET.pack(1, KEPT[0])) - HEAD_BYTES
    log = files.contents[FOLDER / "log" / "0000000001.log"].block
    log[offset + 40] ^= 1
    if entry == "damaged":
        block[place + 6] ^= 1
    with capture_logs() as events:
        assert not compact(store, recovered)
    (kept,) = [event for event in events if event["event"] == "segment.kept"]
    assert (kept["segment"], kept["messages"], kept["queues"]) == (1, 1, [1])
    assert 1 not in store.compactable()  # not again until fewer slots need it
    with pytest.raises(CorruptRecord, match="message 3 of queue 1 is missing"):
        bodies(store, recovered)
    log[offset + 40] ^= 1
    assert bodies(store, recovered) == [*KEPT, 28]


def test_the_queue_log_of_these_tests_is_one_file() -> None:
    """These tests damage what is read: without entries nothing is read from the queue log."""
    files = MemoryFiles()
    store, recovered = write_messages(files, 3)
    queue_log(files, "group")[ENTRY_BYTES:] = bytes(4 * ENTRY_BYTES)
    with pytest.raises(CorruptRecord):
        read_slot(store, 1, 1, 4, None, ())
    assert bodies(store, recovered) == [1, 2, 3]


# ---- a broker -------------------------------------------------------------------------------------------------------


class GatedColdFiles(GatedFiles, ColdFiles):
    """Files whose log no reader of slots opens before the gate is open."""


async def damage_a_queue_log(folder: Path) -> None:
    """Leave a queue of 300 messages on disk, the entries of ten of which are zeros."""
    async with mortal_broker(folder, QUEUE) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, publish, client, "q", numbered(300, 100))
    (path,) = (folder / "vhosts" / "%2F" / "queues").glob("*.queue")
    block = bytearray(path.read_bytes())
    block[ENTRY_BYTES * 50 : ENTRY_BYTES * 60] = bytes(ENTRY_BYTES * 10)
    path.write_bytes(block)


async def rebuilt(folder: Path) -> int:
    """Start a broker, consume all messages, stop it before any timer runs, and return how many entries it rebuilt."""
    with capture_logs() as events:
        async with mortal_broker(folder, QUEUE) as broker:
            broker._timers.close()
            with await talk(broker, connect, broker) as client:
                await talk(broker, lambda: client.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk))
                assert len(await talk(broker, receive, client, 300)) == 300
    return entries_rebuilt(events)


def entries_rebuilt(events: Iterable[Mapping[str, Any]]) -> int:
    """Return how many entries were rebuilt after the start, by the log."""
    return sum([event["messages"] for event in events if event["event"] == "store.entries_rebuilt"])


@pytest.mark.fault
async def test_a_quick_stop_keeps_the_mended_entries(tmp_path: Path) -> None:
    """The next start finds the rebuilt entries of the last one, however soon the broker stopped."""
    await damage_a_queue_log(tmp_path)
    assert await rebuilt(tmp_path) >= 10
    assert await rebuilt(tmp_path) == 0


@pytest.mark.fault
async def test_a_stop_waits_for_a_read_that_mends(tmp_path: Path) -> None:
    """Entries that a read rebuilds during the stop are kept, too: the next start rebuilds the others only."""
    await damage_a_queue_log(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    files = GatedColdFiles("open", lambda path: of_log(path) and current_thread().name.startswith("slot-reader"))
    files.gate.clear()
    with capture_logs() as events:
        async with mortal_broker(tmp_path / "one", QUEUE, files=files) as broker:
            broker._timers.close()
            assert await asyncio.to_thread(files.reached.wait, DEADLINE_S)  # a start reads the first slot

            async def open_gate() -> None:
                await wait_until_async(lambda: broker.administration.closed, "the stop")
                files.gate.set()

            opening = asyncio.create_task(open_gate())
        await opening
    first = entries_rebuilt(events)
    assert first > 0
    assert first + await rebuilt(tmp_path / "one") == await rebuilt(tmp_path / "other")
