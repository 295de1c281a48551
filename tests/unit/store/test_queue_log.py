"""Queue logs: entries by message id, in chunks."""

from __future__ import annotations

from pathlib import Path

from broker.store.memory_files import MemoryFiles
from broker.store.queue_log import CHUNK_IDS, QueueLogs

FOLDER = Path("/queues")


def new_logs(files: MemoryFiles | None = None) -> QueueLogs:
    """Return the queue logs of a folder."""
    files = files or MemoryFiles()
    files.make_folder(FOLDER)
    return QueueLogs(files, FOLDER, sync=True)


def test_entries_come_back_across_chunks() -> None:
    """Entries across a chunk boundary are read back; a missing entry is None."""
    logs = new_logs()
    first = CHUNK_IDS - 2
    logs.write(3, first, [(5, 6), None, (9, 10), (11, 12)])
    assert logs.read(3, first - 1, first + 5) == ([0, 5, 0, 9, 11, 0], [0, 6, 0, 10, 12, 0])
    assert logs.read(4, 1, 3) == ([0, 0], [0, 0])


def test_a_chunk_is_made_when_it_is_needed() -> None:
    """A chunk file is created when an entry of it is first paged out."""
    files = MemoryFiles()
    logs = new_logs(files)
    assert files.list(FOLDER) == []
    logs.write(3, CHUNK_IDS * 5 + 1, [(1, 2)])
    assert files.list(FOLDER) == ["0000000003-00000005.queue"]


def test_entries_of_a_foreign_file_are_none() -> None:
    """Entries of a file that was renamed from another queue are invalid."""
    files = MemoryFiles()
    logs = new_logs(files)
    logs.write(3, 1, [(1, 2)])
    (path,) = files.contents
    files.rename(path, FOLDER / "0000000004-00000000.queue")
    assert new_logs(files).read(4, 1, 2) == ([0], [0])


def test_a_chunk_that_vanishes_has_no_entries() -> None:
    """A chunk file that is removed while the broker runs has no entries, and is started anew."""
    files = MemoryFiles()
    logs = new_logs(files)
    logs.write(3, 1, [(1, 2), (3, 4)])
    files.contents.clear()
    assert logs.read(3, 1, 3) == ([0, 0], [0, 0])
    logs.mend(3, 2, (0, 0), (3, 4))
    assert new_logs(files).check(3, 1, 3)
    assert logs.read(3, 1, 3) == ([0, 3], [0, 4])


def test_an_entry_that_was_written_meanwhile_is_not_mended() -> None:
    """A repair does not overwrite an entry that compaction wrote after the search."""
    logs = new_logs()
    logs.write(3, 1, [(5, 6)])
    logs.mend(3, 1, (0, 0), (1, 2))
    assert logs.read(3, 1, 2) == ([5], [6])


def test_the_entry_of_a_gone_message_is_not_written() -> None:
    """Moving an entry that was dropped, or whose queue is deleted, writes nothing."""
    files = MemoryFiles()
    logs = new_logs(files)
    logs.write(3, 1, [(1, 2), (3, 4)])
    logs.drop(3, 1, 2, 100)
    logs.move(3, 1, (7, 8))
    logs.move(3, 2, (9, 10))
    assert logs.read(3, 1, 3) == ([1, 9], [2, 10])
    logs.forget(3, 200)
    logs.move(3, 2, (11, 12))
    assert logs.read(3, 2, 3) == ([9], [10])


def test_entries_of_delayed_messages_tell_when_they_are_due() -> None:
    """Due times are read across chunks; 0 means unknown or never written."""
    logs = new_logs()
    first = CHUNK_IDS - 2
    logs.write(3, first, [(5, 6), None, (9, 10)], [1 << 42, 0, 7])
    logs.write(3, first + 3, [(11, 12)])
    assert logs.read_due(3, first - 1, first + 5) == [0, 1 << 42, 0, 7, 0, 0]
    assert logs.read(3, first, first + 4) == ([5, 0, 9, 11], [6, 0, 10, 12])
    logs.move(3, first, (50, 60), 1 << 42)
    assert logs.read_due(3, first, first + 1) == [1 << 42]
    assert logs.read(3, first, first + 1) == ([50], [60])
