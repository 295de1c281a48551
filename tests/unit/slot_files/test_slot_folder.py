"""The folder of slot files: what a start finds, adopts, gives up and removes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from broker.slot_files.seal_log import Cursor, Seal, decode_lines, encode_line
from broker.slot_files.seal_log_file import NAME, SealLog
from broker.slot_files.seal_view import SealView
from broker.slot_files.slot_folder import SlotFolder
from broker.slot_files.slot_view import open_slot
from broker.store.damage import CorruptFile, NewerFormat
from broker.store.files import PIECES_AT_ONCE
from broker.store.memory_files import MemoryFiles
from broker.store.record import encode_route

FOLDER = Path("/data/slots")
ROUTE = encode_route("topic", "a.b")


def opened(files: MemoryFiles) -> SlotFolder:
    """Return the folder as a start opens it."""
    files.make_folder(FOLDER.parent)
    return SlotFolder.open(files, FOLDER)


def sealed(folder: SlotFolder, *bodies: bytes, queue: int = 1, first: int = 1) -> Seal:
    """Seal one slot file with the bodies."""
    file = folder.begin("/", f"tap{queue}", queue, first)
    for number, body in enumerate(bodies):
        file.add(first + number, 1000 + number, 0, ROUTE, b"header", body)
    return folder.seal(file, first + len(bodies))


def bodies(files: MemoryFiles, folder: SlotFolder) -> dict[int, list[bytes]]:
    """Return the bodies of each listed slot file."""
    return {
        one.seal: [row.body for row in open_slot(files.read(folder.path(one.seal)), one.crc)]
        for one in folder.view.seals
    }


def slot_names(files: MemoryFiles) -> list[str]:
    """Return the names of the present slot files."""
    return [name for name in files.list(FOLDER) if name.endswith(".slot")]


@pytest.fixture
def files() -> MemoryFiles:
    """Provide files in memory."""
    return MemoryFiles()


@pytest.fixture
def folder(files: MemoryFiles) -> SlotFolder:
    """Provide an empty folder."""
    return opened(files)


def test_a_start_finds_what_was_sealed(files: MemoryFiles, folder: SlotFolder) -> None:
    """The store's id, the slot files, the next seal and the cursors are found again."""
    one, two = sealed(folder, b"one", b"two"), sealed(folder, b"three", queue=2)
    folder.log.append(Cursor("lake", "/", "tap1", 1, 99))
    folder.close()
    again = opened(files)
    assert again.view.store == folder.view.store
    assert len(bytes.fromhex(again.view.store)) == 16
    assert again.view.seals == [one, two]
    assert (one.seal, one.first, one.end, one.count, one.bytes) == (1, 1, 3, 2, files.size(folder.path(1)))
    assert bodies(files, again) == {1: [b"one", b"two"], 2: [b"three"]}
    assert again.log.next_seal == 3
    assert again.view.cursors == [Cursor("lake", "/", "tap1", 1, 99)]


def test_removed_files_leave_what_readers_need_to_know(files: MemoryFiles, folder: SlotFolder) -> None:
    """Files that all cursors passed are removed without a gap, forced ones with a gap; a start knows both."""
    seals = [sealed(folder, b"x", first=number) for number in range(1, 5)]
    folder.remove([seals[0]], [(seals[1], "bytes")])
    other = sealed(folder, b"y", queue=2)
    folder.remove([], [(other, "age")])
    for view in (folder.view, opened(files).view):
        assert [one.seal for one in view.seals] == [3, 4]
        assert [(one.seal, one.reason) for one in view.gaps] == [(2, "bytes"), (5, "age")]
        assert {key: one.seal for key, one in view.released.items()} == {("/", 1): 2, ("/", 2): 5}
        assert [one.seal for one in view.lost(2)] == [5]
    assert slot_names(files) == [f"{number:020}.slot" for number in (3, 4)]
    assert opened(files).log.next_seal == 6


def test_a_reader_during_a_removal_sees_no_gap_between_files(files: MemoryFiles, folder: SlotFolder) -> None:
    """After each line of a removal, every gap comes before all listed files of its queue."""
    seals = [sealed(folder, b"x", first=number) for number in range(1, 7)]
    folder.remove(seals[:2], [(seals[2], "bytes"), (seals[3], "age")])
    view = SealView()
    for line in decode_lines(files.read(folder.log.path))[0]:
        view.fold(line)
        assert all(gap.seal < one.seal for gap in view.gaps for one in view.of_queue(gap.key))
    assert [one.seal for one in view.gaps] == [3, 4]


def test_an_abandoned_draft_leaves_nothing(files: MemoryFiles, folder: SlotFolder) -> None:
    """The seal of an abandoned draft goes to the next slot file, which contains only its own bytes."""
    file = folder.begin("/", "tap1", 1, 1)
    file.add(1, 0, 0, ROUTE, b"", b"long" * 1_000_000)
    file.abandon()
    assert slot_names(files) == []
    assert sealed(folder, b"short").seal == 1
    assert bodies(files, folder) == {1: [b"short"]}


def test_a_draft_that_was_left_lying(files: MemoryFiles, folder: SlotFolder) -> None:
    """Bytes of an abandoned draft that could not be removed do not appear in the next file."""
    put(files, folder.path(1), b"left over" * 100)
    sealed(folder, b"short")
    assert bodies(files, folder) == {1: [b"short"]}


def test_files_that_no_line_names(files: MemoryFiles, folder: SlotFolder) -> None:
    """A start removes unfinished and old slot files, adopts a whole one with the next seal, and keeps the rest."""
    sealed(folder, b"one")
    sealed(folder, b"two")
    log = files.read(folder.log.path)
    third = sealed(folder, b"three")
    fourth = sealed(folder, b"four")
    put(files, folder.path(4), files.read(folder.path(4))[:-1])
    put(files, folder.path(7), files.read(folder.path(1)))  # whole, but its header has another seal
    put(files, FOLDER / "notes.txt", b"mine")
    put(files, folder.log.path, log)
    again = opened(files)
    assert again.view.seal(3) == third
    assert fourth.seal == again.log.next_seal == 4
    assert slot_names(files) == [f"{number:020}.slot" for number in (1, 2, 3)]
    assert files.read(FOLDER / "notes.txt") == b"mine"
    folder.remove([third])
    put(files, folder.path(3), b"left over")
    assert opened(files).log.next_seal == 4
    assert slot_names(files) == [f"{number:020}.slot" for number in (1, 2)]


def test_a_strangers_slot_file_is_not_taken_in() -> None:
    """A whole file with the next seal, written by another store, is removed."""
    files, others = MemoryFiles(), MemoryFiles()
    others.token(16)  # so that the other store gets another id
    folder, stranger = opened(files), opened(others)
    sealed(stranger, b"theirs")
    put(files, folder.path(1), others.read(stranger.path(1)))
    assert opened(files).view.seals == []
    assert slot_names(files) == []


def test_a_file_with_a_damaged_row_is_not_taken_in(files: MemoryFiles, folder: SlotFolder) -> None:
    """Every row of an unlisted file must be whole, because its rows may have been lost with the power."""
    file = folder.begin("/", "tap1", 1, 1)
    file.add(1, 0, 0, ROUTE, b"header", b"row")
    file.complete(2)
    files.open(file.path).write_at(64, b"?")
    again = opened(files)
    assert (again.view.seals, slot_names(files)) == ([], [])


def test_listed_files_that_are_lost(files: MemoryFiles, folder: SlotFolder) -> None:
    """A listed file that is missing or shorter becomes a gap, and the shorter one is kept aside."""
    for body in (b"one", b"two", b"three"):
        sealed(folder, body)
    files.remove(folder.path(1))
    put(files, folder.path(2), files.read(folder.path(2))[:50])
    for _ in range(2):
        again = opened(files)
        assert bodies(files, again) == {3: [b"three"]}
        assert [(one.seal, one.reason) for one in again.view.lost(0)] == [(1, "missing"), (2, "damaged")]
        assert again.view.lost(2) == []
    assert files.size(FOLDER / f"{2:020}.slot.damaged") == 50


def test_a_damaged_log_stops_the_start(files: MemoryFiles, folder: SlotFolder) -> None:
    """A damaged log stops the start without a change.

    Damaged are: a bad line before a good one, a missing first line, a later format, and no log beside slot files.
    """
    sealed(folder, b"one")
    sealed(folder, b"two")
    block = files.read(folder.log.path)
    lines = block.splitlines(keepends=True)
    later = encode_line("store", {"format": 3, "store": folder.view.store})
    for damaged in (block.replace(b"tap1", b"tapp", 1), b"", b"".join(lines[1:]), later + b"".join(lines[1:]), None):
        put(files, folder.log.path, damaged)
        before = {path: bytes(content.block) for path, content in files.contents.items()}
        with pytest.raises((CorruptFile, NewerFormat), match=r"seals\.log"):
            opened(files)
        assert {path: bytes(content.block) for path, content in files.contents.items()} == before
    put(files, folder.log.path, block)
    assert bodies(files, opened(files)) == {1: [b"one"], 2: [b"two"]}


def test_dead_lines_go(files: MemoryFiles, folder: SlotFolder) -> None:
    """The log is rewritten when dead lines far outnumber live ones, and continues."""
    sealed(folder, b"one")
    sizes = []
    for number in range(2500):
        folder.log.append(Cursor("lake", "/", "tap1", 0, number))
        sizes.append(files.size(folder.log.path))
    assert sum(after < before for before, after in pairwise(sizes)) == 2
    assert max(sizes) < 1100 * sizes[0]
    sealed(folder, b"two")
    again = SealLog.open(files, FOLDER, sync=True)
    assert [one.seal for one in again.view.seals] == [1, 2]
    assert again.view.cursors == [Cursor("lake", "/", "tap1", 0, 2499)]


def test_snapshots_live_until_the_next_start(files: MemoryFiles, folder: SlotFolder) -> None:
    """A snapshot's slot files are readable until it is dropped; the next start removes leftovers."""
    snapshots = [folder.snapshots.new() for _ in range(3)]
    for snapshot in snapshots:
        for n in range(2):
            file = folder.snapshots.begin(snapshot, n, "/", "orders", 4, 1)
            file.add(1, 5, 0, ROUTE, b"", snapshot.encode())
            slot = folder.snapshots.finish(file, 2)
            block = files.read(folder.snapshots.path(snapshot, n))
            view = open_slot(block, slot.crc)
            assert (slot.n, slot.count, slot.bytes, view.meta.seal) == (n, 1, len(block), 0)
            assert next(iter(view)).body == snapshot.encode()
    folder.snapshots.drop(snapshots[0])
    folder.snapshots.drop(snapshots[0])
    assert files.list(folder.snapshots.folder) == sorted(snapshots[1:])
    assert opened(files).view.seals == []
    assert files.list(folder.snapshots.folder) == []


def put(files: MemoryFiles, path: Path, block: bytes | None) -> None:
    """Replace the content of a file, or remove the file."""
    files.remove(path)
    if block is not None:
        files.open(path, create=True).write_at(0, block)


def test_a_log_of_very_many_lines_is_rewritten_block_by_block() -> None:
    """A start rewrites the log of many seals, and the file that it leaves has all of them, and what follows."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    SealLog.open(files, FOLDER, sync=True).close()
    head = files.read(FOLDER / NAME)
    seals = [
        Seal(number, "/", "tap", 1, number, number + 1, 1, number, number + 1, 500, number)
        for number in range(1, 2 * PIECES_AT_ONCE + 500)
    ]
    lines = [encode_line("seal", one.to_json()) for one in seals]
    files.open(FOLDER / NAME).write_at(len(head), b"".join(lines[:-1]))
    log = SealLog.open(files, FOLDER, sync=True)
    assert log.view.seals == seals[:-1]
    log.append(seals[-1])
    log.close()
    again = SealLog.open(files, FOLDER, sync=True)
    again.close()
    assert again.view.seals == seals
    assert len(files.read(FOLDER / NAME).splitlines()) == again.view.live_lines()
