"""Queue logs: entries by message id, in chunks."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.core.queue.level import HOLDING_PRIORITY
from broker.store.entry_buffer import CHUNK_MAX_BYTES
from broker.store.memory_files import MemoryFiles
from broker.store.queue_entry import CELL_IDS, ENTRY_BYTES, Entries
from broker.store.queue_log import CHUNK_IDS, QueueLogs
from broker.store.record import LEVEL_SHIFT, QUEUE_NUMBERS
from tests.watched_files import WatchedFiles

FOLDER = Path("/queues")
FEW = CHUNK_MAX_BYTES // ENTRY_BYTES  # entries that need no file


def new_logs(files: MemoryFiles | None = None) -> QueueLogs:
    """Return the queue logs of a folder."""
    files = files or MemoryFiles()
    files.make_folder(FOLDER)
    return QueueLogs(files, FOLDER, sync=True)


@pytest.fixture
def logs(files: MemoryFiles) -> QueueLogs:
    """Provide the queue logs of the files."""
    return new_logs(files)


def entries(count: int, begin: int = 1) -> Entries:
    """Return different entries."""
    return list(range(begin, begin + count)), [10] * count


def test_a_chunk_has_a_file_when_it_has_many_entries(files: MemoryFiles, logs: QueueLogs) -> None:
    """A chunk file is created with the first entry that is one too many, and then has all of them."""
    first = CHUNK_IDS * 5 + 1
    logs.write(3, first + 2, entries(FEW - 2, 3))
    logs.write(3, first, entries(2))
    assert (files.list(FOLDER), logs.written) == ([], 0)
    logs.write(3, first + FEW, entries(1, FEW + 1))
    assert (files.list(FOLDER), logs.written) == (["0000000003-00000005.queue"], 3)
    for found in (logs, new_logs(files)):
        assert found.read(3, first, first + FEW + 1) == (list(range(1, FEW + 2)), [10] * (FEW + 1))
    logs.write(3, first + FEW + 1, entries(1))
    assert logs.written == 4  # to the file that is there


@pytest.mark.parametrize("priority", [-1, 0, 9, 141, 142, 255, HOLDING_PRIORITY])
@pytest.mark.parametrize("first", [1, CHUNK_IDS * 10**8])
def test_the_file_of_every_level_is_found_again(files: MemoryFiles, logs: QueueLogs, priority: int, first: int) -> None:
    """The names of files are read for the highest numbers of levels and chunks, too."""
    number = priority + 1 << LEVEL_SHIFT | QUEUE_NUMBERS
    logs.write(number, first, entries(3))
    logs.sync()
    assert len(files.list(FOLDER)) == 1
    assert new_logs(files).check(number, first, first + 3)


def test_a_sync_makes_the_files_of_lasting_queues() -> None:
    """After a sync the few entries of a lasting queue are in a file, and those of another queue are not."""
    calls: list[str] = []
    files = WatchedFiles(FOLDER, lambda call, _path: calls.append(call))
    logs = new_logs(files)
    logs.write(3, 1, entries(2))
    logs.write(4, 1, entries(2), durable=False)
    logs.write(5, 1, entries(FEW + 1), durable=False)
    logs.sync()
    assert files.list(FOLDER) == ["0000000003-00000000.queue", "0000000005-00000000.queue"]
    assert new_logs(files).read(3, 1, 3) == ([1, 2], [10, 10])
    assert logs.read(3, 1, 3) == logs.read(4, 1, 3) == ([1, 2], [10, 10])
    calls.clear()
    logs.sync()
    assert "sync folder" not in calls  # nothing was written since


@pytest.mark.parametrize("count", [10, FEW + 1])
def test_a_later_entry_replaces_an_earlier_one(logs: QueueLogs, count: int) -> None:
    """An entry that is written again is read as it was written last, also across several pieces."""
    logs.write(3, 1, entries(count))
    logs.write(3, 4, ([70, 0, 90], [7, 0, 9]))
    assert logs.read(3, 3, 8) == ([3, 70, 0, 90, 7], [10, 7, 0, 9, 10])
    assert logs.read(3, 5, 6) == ([0], [0])
    assert logs.read(3, count, count + 2) == ([count, 0], [10, 0])


def test_what_no_checkpoint_needs_is_forgotten_at_once(files: MemoryFiles, logs: QueueLogs) -> None:
    """Dropped entries of a queue that does not last leave room for others: no file is made."""
    for number in range(5):
        begin = 1 + number * FEW
        logs.write(3, begin, entries(FEW), durable=False)
        logs.drop(3, begin, begin + FEW - 1, 100)
        logs.drop(3, begin + FEW - 1, begin + FEW, 100)
    logs.write(3, 10_001, entries(FEW // 2), durable=False)
    logs.write(3, 20_001, entries(FEW // 2), durable=False)
    logs.drop(3, 10_001, 10_001 + FEW // 2, 100)
    logs.write(3, 30_001, entries(FEW // 2), durable=False)
    assert files.list(FOLDER) == []
    assert logs.read(3, 20_001, 20_003) == ([1, 2], [10, 10])
    assert logs.read(3, 10_001, 10_003) == ([0, 0], [0, 0])
    logs.drop(3, 30_001, 30_001 + FEW // 2, 100)
    assert logs.read(3, 20_001, 20_003) == ([1, 2], [10, 10])
    logs.forget(3, 100)
    logs.write(3, 1, entries(FEW), durable=False)
    assert files.list(FOLDER) == []


def test_what_a_checkpoint_may_need_stays_until_the_next(files: MemoryFiles, logs: QueueLogs) -> None:
    """Entries that were dropped after a checkpoint had captured them are in a file until another one is taken."""
    for queue in (3, 4, 5):
        logs.write(queue, 1, entries(2))
    logs.write(5, 3, entries(2, 3))
    logs.drop(3, 1, 3, 100)
    logs.forget(4, 100)
    logs.drop(5, 1, 3, 100)
    logs.sync()
    assert logs.reclaim(100) == 0
    for queue in (3, 4, 5):
        assert new_logs(files).read(queue, 1, 3) == ([1, 2], [10, 10])
    assert logs.reclaim(101) == 2
    assert files.list(FOLDER) == ["0000000005-00000000.queue"]


@pytest.mark.parametrize("forget", [False, True])
def test_a_chunk_that_is_begun_again_has_its_header(files: MemoryFiles, logs: QueueLogs, forget: bool) -> None:
    """A chunk whose file was removed gets a whole file again, which the next start accepts."""
    for first in (1, 1001, 2001):
        logs.write(3, first, entries(FEW + 1, first))
        assert logs.read(3, first, first + FEW + 1) == entries(FEW + 1, first)
        started = new_logs(files)
        assert started.check(3, first, first + FEW + 1)
        assert started.read(3, first, first + FEW + 1) == entries(FEW + 1, first)
        if forget:
            logs.forget(3, 100)
        else:
            logs.drop(3, first, first + FEW + 1, 100)
        assert logs.reclaim(101) == 1
        assert files.list(FOLDER) == []


def test_entries_of_a_foreign_file_are_none(files: MemoryFiles, logs: QueueLogs) -> None:
    """Entries of a file that was renamed from another queue are invalid."""
    logs.write(3, 1, ([1], [2]))
    logs.sync()
    (path,) = files.contents
    files.rename(path, FOLDER / "0000000004-00000000.queue")
    assert new_logs(files).read(4, 1, 2) == ([0], [0])


def test_a_chunk_that_vanishes_has_no_entries(files: MemoryFiles, logs: QueueLogs) -> None:
    """A chunk file that is removed while the broker runs has no entries, and is started anew."""
    logs.write(3, 1, ([1, 3], [2, 4]))
    logs.sync()
    files.contents.clear()
    assert logs.read(3, 1, 3) == ([0, 0], [0, 0])
    logs.repair(3, 2, (0, 0), (3, 4))
    assert new_logs(files).check(3, 1, 3)
    assert logs.read(3, 1, 3) == ([0, 3], [0, 4])


def test_the_file_of_a_chunk_stays_open_for_the_next_slots() -> None:
    """It is opened once for many slots, and closed by a sync, or when another chunk is written or it is removed."""
    opened: list[str] = []

    def look(call: str, path: Path) -> None:
        if call == "create":
            opened.append(path.name[:10])

    logs = new_logs(WatchedFiles(FOLDER, look))
    slot: Entries = ([5] * FEW, [6] * FEW)
    for number, first in ((3, 1), (3, FEW + 1), (3, 2 * FEW + 1), (4, 1), (4, FEW + 1), (3, 3 * FEW + 1)):
        logs.write(number, first, slot)
    logs.write(3, 4 * FEW + 1, slot)
    assert [int(name) for name in opened] == [3, 4, 3]
    logs.sync()
    logs.write(3, 5 * FEW + 1, slot)
    assert [int(name) for name in opened] == [3, 4, 3, 3]
    logs.forget(3, 0)
    logs.reclaim(1)
    logs.write(3, 1, slot)
    logs.write(3, FEW + 1, slot)
    assert logs.read(3, FEW, FEW + 2) == ([5, 5], [6, 6])
    assert logs.read(3, 2 * FEW + 1, 2 * FEW + 2) == ([0], [0])


def test_an_entry_that_was_written_meanwhile_is_not_mended(logs: QueueLogs) -> None:
    """A repair does not overwrite an entry that compaction wrote after the search."""
    logs.write(3, 1, ([5], [6]))
    logs.repair(3, 1, (0, 0), (1, 2))
    assert logs.read(3, 1, 2) == ([5], [6])


def test_the_entry_of_a_gone_message_is_not_written(files: MemoryFiles, logs: QueueLogs) -> None:
    """Moving an entry that was dropped, or whose queue is deleted, writes nothing."""
    logs.write(3, 1, ([1, 3], [2, 4]))
    logs.drop(3, 1, 2, 100)
    logs.move(3, 1, ([7, 9], [8, 10]))
    assert logs.read(3, 1, 3) == ([1, 9], [2, 10])
    logs.forget(3, 200)
    logs.move(3, 2, ([11], [12]))
    logs.sync()
    assert logs.read(3, 2, 3) == ([9], [10])


@pytest.mark.parametrize("count", [20, 3 * CELL_IDS])
@pytest.mark.parametrize(("gone", "end"), [(0, 10), (10, 20), (5, 15), (0, 20)], ids=["begin", "end", "middle", "all"])
def test_a_part_of_a_range_is_moved_with_all_that_belongs_to_it(
    logs: QueueLogs, count: int, gone: int, end: int
) -> None:
    """Moving a range writes position, size and moment of each message whose entry is needed, and no other's."""
    first = CHUNK_IDS - count // 2  # the range crosses a chunk, too
    step = count // 20
    dropped = range(gone * step, end * step)
    logs.write(3, first, (list(range(1, count + 1)), list(range(1, count + 1))), [1000 + n for n in range(count)])
    logs.drop(3, first + dropped.start, first + dropped.stop, 100)
    moved = [1 << 32 | n for n in range(count)]
    logs.move(3, first, (moved, [5000 + n for n in range(count)]), [9000 + n for n in range(count)])
    kept = [n for n in range(count) if n not in dropped]
    positions, sizes = logs.read(3, first, first + count)
    due_ms = logs.read_due(3, first, first + count)
    assert [(positions[n], sizes[n], due_ms[n]) for n in kept] == [(moved[n], 5000 + n, 9000 + n) for n in kept]
    assert set(positions).isdisjoint(moved[n] for n in dropped)


def test_entries_of_delayed_messages_tell_when_they_are_due(logs: QueueLogs) -> None:
    """Due times are read across chunks; 0 means unknown or never written."""
    first = CHUNK_IDS - 2
    logs.write(3, first, ([5, 0, 9], [6, 0, 10]), [1 << 42, 0, 7])
    logs.write(3, first + 3, ([11], [12]))
    assert logs.read_due(3, first - 1, first + 5) == [0, 1 << 42, 0, 7, 0, 0]
    assert logs.read(3, first, first + 4) == ([5, 0, 9, 11], [6, 0, 10, 12])
    logs.move(3, first, ([50], [60]), [1 << 42])
    assert logs.read_due(3, first, first + 1) == [1 << 42]
    assert logs.read(3, first, first + 1) == ([50], [60])


@pytest.mark.parametrize("count", [FEW, 3 * CELL_IDS])
def test_an_entry_among_others_is_written_alone(files: MemoryFiles, logs: QueueLogs, count: int) -> None:
    """Entries that are written again leave their neighbours as they were, in the buffer and in a file, whatever borders
    they cross; the second time only they are written.
    """
    positions, sizes = entries(count)
    due_ms = [1 << 40 | number for number in range(count)]
    logs.write(3, 10, (positions, sizes), due_ms)
    for begin, length in ((12, 1), (10, 3), (10 + count - 2, 2), (CELL_IDS - 90, 300 if count > FEW else 3), (12, 1)):
        index = begin - 10
        positions[index : index + length] = [9_000_000 + begin] * length
        due_ms[index : index + length] = [7] * length
        logs.write(3, begin, ([9_000_000 + begin] * length, [10] * length), [7] * length)
        assert logs.read(3, 10, 10 + count) == (positions, sizes), begin
        assert logs.read_due(3, 10, 10 + count) == due_ms, begin
    logs.sync()
    assert new_logs(files).read(3, 10, 10 + count) == (positions, sizes)
    written = [len(block) for block in writes(files, logs, 3, 12)]
    assert written == [ENTRY_BYTES]


def writes(files: MemoryFiles, logs: QueueLogs, queue: int, message_id: int) -> list[bytes]:
    """Return what is written to a file that exists when one entry is moved."""
    (path,) = files.contents
    before = bytes(files.contents[path].block)
    logs.move(queue, message_id, ([77], [7]))
    after = bytes(files.contents[path].block)
    differing = [at for at in range(len(before)) if before[at] != after[at]]
    first, last = differing[0] // ENTRY_BYTES, differing[-1] // ENTRY_BYTES
    return [after[first * ENTRY_BYTES : (last + 1) * ENTRY_BYTES]]
