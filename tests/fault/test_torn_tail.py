"""The log is cut at every byte: all earlier records survive, transactions as a whole, and the rest is reported."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from broker.slots.redeliveries import ReturnRun
from broker.store.memory_files import FileContent, MemoryFiles
from broker.store.record import TARGET, encode_message, encode_requeued, encode_route, encode_settled, encode_topology
from broker.store.segment import AHEAD_MAX_BYTES, HEADER_BYTES, segment_path
from broker.store.store import VhostStore
from tests.fault.store_model import FOLDER

ROUTE = encode_route("x", "k")
RECORDS = 200
SEGMENT_BYTES = 1 << 20
LOG = FOLDER / "log"


class Prefix(NamedTuple):
    """The content of the log up to some offset."""

    end: int
    next_id: int
    messages: int
    changes: int


def write_log(files: MemoryFiles) -> list[Prefix]:
    """Write 200 records of several kinds in batches of ten; return the content of each prefix.

    Every tenth is a transaction: two messages, one of them settled, a change and the settlement of an older message.
    """
    store, _ = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    log = store.log
    next_id, changes = 1, 0
    waiting: list[int] = []
    prefixes = [Prefix(HEADER_BYTES, 1, 0, 0)]
    for number in range(RECORDS):
        if number % 10 == 4:
            with log.group():
                log.append(encode_settled(log.synced, 1, 1, [waiting.pop(0)]))
                for message_id in (next_id, next_id + 1):
                    log.append(message(log.synced, number, message_id))
                log.append(encode_topology(log.synced, 1, {"change": "made", "name": f"q{number}"}))
                log.append(encode_settled(log.synced, 1, 1, [next_id + 1]))
            waiting.append(next_id)
            changes += 1
            next_id += 2
        elif number % 20 == 7:
            log.append(encode_settled(log.synced, 1, 1, [waiting.pop(0)]))
        elif number % 20 == 13:
            log.append(encode_topology(log.synced, 1, {"change": "made", "name": f"q{number}"}))
            changes += 1
        elif number % 20 == 17:
            log.append(encode_requeued(log.synced, 1, 1, waiting[-1], [ReturnRun(0, 1, 1, 1)]))
        else:
            log.append(message(log.synced, number, next_id))
            waiting.append(next_id)
            next_id += 1
        prefixes.append(Prefix(log.position & 0xFFFFFFFF, next_id, len(waiting), changes))
        if number % 10 == 9:
            commit(store)
    log.close(clean=True)  # it cuts the zeros off that follow
    return prefixes


def message(synced: int, number: int, message_id: int) -> bytes:
    """Return the record of a message of queue 1."""
    return encode_message(synced, 1, 1, ROUTE, b"h", b"b%d" % number, TARGET.pack(1, message_id))


def commit(store: VhostStore) -> None:
    """Write and sync the pending records."""
    batch = store.log.take()
    assert batch is not None
    store.log.write(batch)
    store.log.complete(batch)


def cut_copy(files: MemoryFiles, size: int, tail: bytes = b"") -> MemoryFiles:
    """Return the same files with the first segment cut to `size` bytes and other bytes after it."""
    copy = MemoryFiles()
    copy.folders = set(files.folders)
    for path, content in files.contents.items():
        copied = copy.contents[path] = FileContent()
        copied.block = bytearray(content.block)
    held = copy.contents[segment_path(LOG, 1)].block
    held[size:] = tail
    return copy


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("quarter", [2, *(pytest.param(quarter, marks=pytest.mark.torture) for quarter in (0, 1, 3))])
def test_cut_at_every_byte(quarter: int) -> None:
    """Exactly the complete records before the cut survive, and the bytes of the broken one are counted."""
    files = MemoryFiles()
    prefixes = write_log(files)
    size = len(files.contents[segment_path(LOG, 1)].block)
    assert size == prefixes[-1].end
    cuts = range(HEADER_BYTES, size + 1)
    place = 0
    for cut in cuts[quarter * len(cuts) // 4 : (quarter + 1) * len(cuts) // 4]:
        while place + 1 < len(prefixes) and prefixes[place + 1].end <= cut:
            place += 1
        with capture_logs() as said:
            _, recovered = VhostStore.open(cut_copy(files, cut), FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
        state = recovered.queues.get(1)
        told = (state.next_id if state else 1, recovered.messages, len(recovered.topology))
        assert told == prefixes[place][1:], f"cut at {cut}"
        # A complete mark after the last record is not a loss; the first three bytes of a length are zeros.
        untold = cut - prefixes[place].end - recovered.cut_bytes
        assert untold in (0, 1, 2, 3, 60, 61, 62, 63), f"cut at {cut}: {recovered.cut_bytes} bytes told"
        assert [line["event"] for line in said] == ["store.tail_cut"] * bool(recovered.cut_bytes)


@pytest.mark.fault
def test_a_header_cut_short_removes_the_segment() -> None:
    """A segment that ends within its header held no record; its number is not reused."""
    files = MemoryFiles()
    write_log(files)
    for cut in range(HEADER_BYTES):
        store, recovered = VhostStore.open(cut_copy(files, cut), FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
        assert recovered.messages == 0
        assert recovered.cut_bytes == cut
        assert sorted(store.log.segments) == [2]


@pytest.mark.fault
@pytest.mark.parametrize("zeros", [1, 35, 36, 60, 5000, AHEAD_MAX_BYTES, AHEAD_MAX_BYTES + 1])
def test_a_tail_of_zeros_is_cut(zeros: int) -> None:
    """Zeros, which the log writes ahead of itself, are not records; only more of them than it writes are damage."""
    files = MemoryFiles()
    prefixes = write_log(files)
    for prefix in prefixes[::20]:
        copy = cut_copy(files, prefix.end, bytes(zeros))
        _, recovered = VhostStore.open(copy, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
        assert recovered.messages == prefix.messages
        assert recovered.cut_bytes or len(copy.read(segment_path(LOG, 1))) == prefix.end
        told = [(finding.event, finding.offset, finding.lost_bytes) for finding in recovered.findings]
        assert told == ([("store.tail_cut", prefix.end, zeros)] if zeros > AHEAD_MAX_BYTES else [])


@pytest.mark.fault
def test_a_cut_is_told_once() -> None:
    """The start after the one that cut the tail finds no damage, and the records appended after the cut."""
    files = cut_copy_of_log(-3)
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    assert recovered.cut_bytes
    next_id = recovered.queues[1].next_id
    store.log.append(encode_message(store.log.synced, 1, 1, ROUTE, b"h", b"new", TARGET.pack(1, next_id)))
    commit(store)
    _, again = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    assert (again.cut_bytes, again.findings) == (0, [])
    assert again.messages == recovered.messages + 1


def cut_copy_of_log(by: int) -> MemoryFiles:
    """Return a log without its last bytes."""
    files = MemoryFiles()
    prefixes = write_log(files)
    return cut_copy(files, prefixes[-1].end + by)
