"""The loop removes parts of a queue log while a checkpoint syncs it or a reader reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import pytest

from broker.store.memory_files import MemoryFiles
from broker.store.queue_entry import Entries
from broker.store.queue_log import QueueLogs
from tests.deadline import DEADLINE_S
from tests.watched_files import WatchedFiles, ignore

FOLDER = Path("/queues")
ENTRIES = ([1 << 63 | 64] * 1000, [10] * 1000)  # enough for a file


def test_a_chunk_that_goes_while_the_checkpoint_syncs_is_no_failure() -> None:
    """The loop may remove a chunk of a transient queue at any time during a sync."""
    files = WatchedFiles(FOLDER)
    logs = QueueLogs(files, FOLDER, sync=True)
    logs.write(1, 1, ENTRIES)
    logs.forget(1, 0)
    loop = Thread(target=logs.reclaim, args=(1,))

    def remove(call: str, _path: Path) -> None:
        if call == "open":
            loop.start()
            loop.join(0.2)  # the removal may have to wait for this sync

    files.before = remove
    logs.sync()
    loop.join()
    assert not files.contents


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_written_during_a_sync_is_on_disk_after_the_next(first: int) -> None:
    """The loop writes entries while the thread of the checkpoint syncs their file, or another one: the next checkpoint
    relies on them, so the next sync brings them to the disk.
    """
    disk = WatchedFiles(FOLDER)
    logs = QueueLogs(disk, FOLDER, sync=True)
    for queue in (1, 2):
        logs.write(queue, 1, ENTRIES)
    late = ([1 << 63 | 99] * 10, [7] * 10)

    def write(call: str, _path: Path) -> None:
        if call != "sync":
            return
        disk.before = ignore
        loop = Thread(target=logs.write, args=(first + 1, 1001, late))
        loop.start()
        loop.join(DEADLINE_S)
        assert not loop.is_alive(), "the loop waits for a sync"

    disk.before = write  # while the first queue's file is synced
    logs.sync()
    logs.sync()
    remains = MemoryFiles()
    remains.make_folder(FOLDER)
    for path, block in disk.durable.items():
        remains.open(path, create=True).write_at(0, block)
    after = QueueLogs(remains, FOLDER, sync=True)
    assert after.read(first + 1, 1001, 1011) == late
    assert [after.read(queue, 1, 1001) for queue in (1, 2)] == [ENTRIES, ENTRIES]


def test_a_removed_chunk_is_not_read_from_any_more() -> None:
    """A reader that opens a chunk while it is removed does not hide the chunk that replaces it."""
    files = WatchedFiles(FOLDER)
    logs = QueueLogs(files, FOLDER, sync=True)
    logs.write(1, 1, ENTRIES)
    logs.drop(1, 1, 1001, 0)
    files.before = lambda call, _path: call == "remove" and logs.read(1, 1, 1001)
    logs.reclaim(1)
    files.before = ignore
    logs.write(1, 1001, ENTRIES)
    assert logs.read(1, 1001, 2001) == ENTRIES


def test_a_chunk_that_goes_before_the_sync_reaches_it_keeps_its_entries() -> None:
    """A queue that is deleted during the sync of a checkpoint has its entries on disk: the checkpoint refers to it."""
    files = WatchedFiles(FOLDER)
    logs = QueueLogs(files, FOLDER, sync=True)
    logs.write(1, 1, ([64], [10]))
    logs.write(2, 1, ([64], [10]))
    loop = Thread(target=logs.forget, args=(2, 100))

    def forget(call: str, _path: Path) -> None:
        if call == "open":
            files.before = ignore
            loop.start()
            loop.join(0.2)

    files.before = forget  # of the first queue
    logs.sync()
    loop.join()
    assert logs.reclaim(100) == 0
    assert logs.read(2, 1, 2) == ([64], [10])
    assert logs.reclaim(101) == 1


@pytest.mark.parametrize("by_sync", [False, True])
def test_entries_can_be_read_while_they_move_to_a_file(by_sync: bool) -> None:
    """A thread that reads a chunk while it gets its file finds each entry, at every moment, in the buffer or there."""
    files = WatchedFiles(FOLDER)
    logs = QueueLogs(files, FOLDER, sync=True)
    few = ([64 + number for number in range(100)], [10] * 100)
    for first in (1, 101):
        logs.write(1, first, (few[0][first // 2 : first // 2 + 50], [10] * 50))
    found: list[Entries | None] = []

    def look(call: str, _path: Path) -> None:
        if call not in ("create", "write", "close"):
            return

        def read() -> None:
            found.extend((logs.read(1, 1, 51), logs.read_cached(1, 101, 151)))

        reader = Thread(target=read)
        reader.start()
        reader.join(DEADLINE_S)
        assert not reader.is_alive(), "a reader waits for a writer"

    files.before = look
    if by_sync:
        logs.sync()
    else:
        logs.write(1, 201, ENTRIES)
    look("close", FOLDER)
    assert len(found) >= 2 * 5
    assert found[::2] == [(few[0][:50], few[1][:50])] * (len(found) // 2)
    assert found[1::2] == [(few[0][50:], few[1][50:])] * (len(found) // 2)


def test_a_chunk_that_is_written_again_is_not_removed() -> None:
    """The loop writes to given-up chunks while the thread of a checkpoint removes them: what it wrote last stays."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    logs = QueueLogs(files, FOLDER, sync=True)
    queues = range(1, 101)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(5):
            for queue in queues:
                logs.write(queue, 1, ENTRIES)
                logs.drop(queue, 1, 1001, turn)
            checkpoint = Thread(target=logs.reclaim, args=(turn + 1,))
            checkpoint.start()
            for queue in reversed(queues):
                logs.write(queue, 2001, ENTRIES)
            checkpoint.join()
            assert [queue for queue in queues if logs.read(queue, 2001, 3001) != ENTRIES] == []
    finally:
        sys.setswitchinterval(interval_s)
