"""A file call for the slot files fails or is the last: listed files are complete, and a seal names one file.

A reader may see a line before it is on disk. Therefore the visible state counts, not what the broker was told.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from broker.slot_files import seal_log_file
from broker.slot_files.seal_log import Cursor, Seal, decode_lines
from broker.slot_files.slot_folder import SlotFolder
from broker.slot_files.slot_view import open_slot
from broker.store.damage import StoreFailed
from broker.store.record import encode_route
from tests.fault.faulty_files import FaultyFiles, PowerLost

FOLDER = Path("/srv/data/slots")
LOSSES = range(5)
ROUTE = encode_route("topic", "a.b")
BODY = b"x" * 600  # more than one sector per row


class Life:
    """One life of a broker that seals, and the calls that returned.

    Shapes: ``sealed`` and ``removed`` are seals whose call returned, ``going`` those whose removal was begun.
    ``cursor`` holds the possible positions of the cursor: the last one set, and the one being set.
    """

    def __init__(self, files: FaultyFiles, first: int = 1) -> None:
        self.files = files
        self.first = first
        self.sealed: list[Seal] = []
        self.going: set[int] = set()
        self.removed: set[int] = set()
        self.cursor = [0]

    def run(self) -> None:
        """Open the folder, seal, move a cursor, remove, and seal again."""
        self.folder = SlotFolder.open(self.files, FOLDER)
        self.seal(2)
        self.seal(1, queue=2)
        for at in range(1, 6):
            self.set_cursor(at)
        self.seal(3)
        self.remove(self.sealed[-3:-2], [])
        self.remove([], [(one, "bytes") for one in self.sealed[-2:]])
        self.seal(1)

    def seal(self, rows: int, queue: int = 1) -> None:
        """Seal one slot file."""
        file = self.folder.begin("/", f"tap{queue}", queue, self.first)
        for _ in range(rows):
            file.add(self.first, 0, 0, ROUTE, b"header", b"%d/" % self.first + BODY)
            self.first += 1
        self.sealed.append(self.folder.seal(file, self.first))

    def set_cursor(self, at: int) -> None:
        """Move the cursor."""
        self.cursor.append(at)
        self.folder.log.append(Cursor("lake", "/", "tap1", at, 0))
        self.cursor = [at]

    def remove(self, passed: list[Seal], forced: list[tuple[Seal, str]]) -> None:
        """Remove slot files."""
        going = {one.seal for one in passed} | {one.seal for one, _ in forced}
        self.going |= going
        self.folder.remove(passed, forced)
        self.removed |= going


def seen(files: FaultyFiles) -> dict[int, Seal]:
    """Return the seals that a reader of the log may see now, removed or not."""
    path = FOLDER / "seals.log"
    if path not in files.contents:
        return {}
    lines, _ = decode_lines(bytes(files.contents[path].block))
    return {line["seal"]: Seal.from_json(line) for line in lines if line["k"] == "seal"}


def check(files: FaultyFiles, life: Life, known: dict[int, Seal]) -> SlotFolder:
    """Check the folder as the next start opens it, and return it."""
    folder = SlotFolder.open(files, FOLDER)
    view = folder.view
    listed = {one.seal: one for one in view.seals}
    names = [name for name in files.list(FOLDER) if name not in {"seals.log", "snapshots"}]
    assert names == [f"{number:020}.slot" for number in sorted(listed)]
    for number, one in listed.items():
        slot = open_slot(files.read(folder.path(number)), one.crc)
        assert slot.verify() == []
        assert [row.body for row in slot] == [b"%d/" % row + BODY for row in range(one.first, one.end)]
        assert known.get(number, one) == one, "a seal that was seen stands for another file now"
    for one in life.sealed:
        if one.seal not in life.going:
            assert listed[one.seal] == one, "what was sealed is gone"
    assert not life.removed & set(listed)
    for number in life.going - life.removed - set(listed):
        assert view.lost(number - 1), "a reader is not told what is gone"
    assert {gap.reason for gap in view.gaps} <= {"bytes"}, "a listed file was lost"
    cursor = view.cursor("lake", "/", "tap1")
    assert (cursor.seal if cursor else 0) in life.cursor
    assert folder.log.next_seal > max(known, default=0)
    return folder


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["error", "power lost"])
@pytest.mark.parametrize("partial", [False, True])
def test_each_call(kind: str, partial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any accident the next start lists all files that were sealed and not removed, complete, and no others.

    No seal that a reader may have seen ever names a different file.
    """
    monkeypatch.setattr(seal_log_file, "DEAD_MIN", 3)  # so that the log is rewritten meanwhile
    monkeypatch.setattr(seal_log_file, "DEAD_RATIO", 0)
    for n in count(1):
        files = FaultyFiles(folder=FOLDER.parent)
        files.partial = partial
        if kind == "error":
            files.fail_at = n
        else:
            files.lose_at = n
        life = Life(files)
        try:
            life.run()
        except (StoreFailed, PowerLost):
            went_wrong = True
        else:
            went_wrong = False
        known = seen(files)
        for after in (files.after_kill(), *map(files.after_loss, LOSSES)):
            folder = check(after, life, known)
            found = folder.view.seals, folder.view.gaps, folder.view.cursors
            again = SlotFolder.open(after.after_loss(n), FOLDER)
            assert (again.view.seals, again.view.gaps, again.view.cursors) == found, "a start's findings were lost"
        second = Life(after, first=100)
        second.run()
        assert not {one.seal for one in second.sealed} & set(known)
        if not went_wrong:
            break
    assert n > 60


@pytest.mark.fault
def test_the_log_cut_at_every_byte_of_its_last_line() -> None:
    """A torn last line is cut, its complete slot file is listed again, and a cursor keeps its position."""
    for last in ("seal", "cursor"):
        files = FaultyFiles(folder=FOLDER.parent)
        life = Life(files)
        life.run()
        if last == "cursor":
            life.set_cursor(9)
            life.cursor = [5, 9]
        block = bytes(files.contents[FOLDER / "seals.log"].block)
        line_at = block.rindex(b"\n", 0, -1) + 1
        for size in range(line_at, len(block)):
            for tail in (b"", b"\0" * 40, b"?\n\n"):
                after = files.after_kill()
                after.contents[FOLDER / "seals.log"].block[:] = block[:size] + tail
                folder = check(after, life, seen(files))
                assert folder.view.seals == life.folder.view.seals
                cursor = folder.view.cursor("lake", "/", "tap1")
                assert cursor is not None
                assert cursor.seal == 5
                assert folder.log.next_seal == life.sealed[-1].seal + 1
