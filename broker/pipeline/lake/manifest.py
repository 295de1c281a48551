"""The log of a table: one file an entry, made by a link that fails where the entry is there already.

    _log/<query>-<batch, 20 digits>.json        one batch
    _log/snapshot-<entries, 20 digits>.json     the fold of all before, every 100 entries

So a batch that is played again finds its entry, whoever wrote it and wherever he died. Entries that two snapshots
cover go when the older of them is a day old: no reading of a folder takes so long.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import Entry, SealRange, within
from broker.pipeline.lake.folder_lock import FolderLock
from broker.pipeline.lake.state import LakeState

__all__ = ["DATA", "DAY_MS", "SNAPSHOT_EVERY", "WRITING", "Manifest", "entry_name", "now_ms"]

SNAPSHOT_EVERY: Final = 100
DAY_MS: Final = 86_400_000
ATTEMPTS: Final = 10  # to read a log whose files others replace by a snapshot

_ENTRY: Final = re.compile(r"(?P<query>.+)-(?P<batch>\d{20})\.json")
_SNAPSHOT: Final = "snapshot"
DATA: Final = "data"
LOCK: Final = ".snapshot"
COMMITTING: Final = ".committing"
WRITING: Final = ".writing-"


def entry_name(query: str, batch: int) -> str:
    """Return the name of an entry's file."""
    return f"{query}-{batch:020}.json"


def now_ms() -> int:
    """Return the time of the machine's clock."""
    return time.time_ns() // 1_000_000


class Manifest:
    """The log of one table.

    Invariant: what an entry names is on disk before the entry is, and the entry is on disk before `commit` returns.
    """

    def __init__(self, folder: Path, disk: Disk, *, clock_ms: Callable[[], int] = now_ms) -> None:
        self.folder = folder
        self._disk = disk
        self._clock_ms = clock_ms
        self._state = LakeState()
        self._snapshot = ""  # the name of the one that the state grew from

    def state(self) -> LakeState:
        """Return what the table consists of now. Cost: a listing, and the entries that are new since the last call."""
        for _ in range(ATTEMPTS):
            names = self._disk.list(self.folder)
            snapshots = [name for name in names if name.startswith(f"{_SNAPSHOT}-")]
            try:
                if snapshots and snapshots[-1] > self._snapshot:
                    self._state = LakeState.from_json(self._disk.read(self.folder / snapshots[-1]), snapshots[-1])
                    self._snapshot = snapshots[-1]
                for query, batch, name in _entries(names):
                    if not self._state.holds(query, batch):
                        self._state.add(Entry.from_json(self._disk.read(self.folder / name), name))
            except FileNotFoundError:
                continue  # a snapshot took its place between the listing and the reading
            return self._state
        raise LakeRefused(f"{self.folder} changes faster than it can be read")

    def find(self, query: str, batch: int) -> Entry | None:
        """Return the entry of a batch, None where its file is not there: nobody wrote it, or a snapshot holds it."""
        name = entry_name(query, batch)
        try:
            return Entry.from_json(self._disk.read(self.folder / name), name)
        except FileNotFoundError:
            return None

    def commit(self, entry: Entry) -> bool:
        """Make an entry; tells whether it is new, or else was there already, from an earlier try of the same batch.

        Raises: LakeRefused when the entry that is there is of other slots, or another query's has the same slots.
        """
        self._disk.make_folder(self.folder)
        with FolderLock(self.folder / COMMITTING, wait=True):  # two archives of one tap would both find it free
            if self.check(entry):
                self._disk.sync_folder(self.folder)  # who made it may have died before he did
                return False
            made = self._create(entry_name(entry.query, entry.batch), entry.to_json())
            if not made:
                self._check_same(entry)
            return made

    def check(self, entry: Entry) -> bool:
        """Return whether a batch is in the log already. Raises: LakeRefused, as `commit` would."""
        state = self.state()
        if state.holds(entry.query, entry.batch):
            self._check_same(entry)
            return True
        for sealed in entry.sealed:
            held = state.archived.get(sealed.branch, 0)
            if sealed.seals and sealed.seals[0][0] <= held:
                raise LakeRefused(
                    f"the lake has tap {sealed.tap!r} of vhost {sealed.vhost!r} up to seal {held} already, "
                    f"and was to get seal {sealed.seals[0][0]} again: one archive only may write a tap into a lake; "
                    "end the other one, then --take-over goes on behind what it took"
                )
        return False

    def _check_same(self, entry: Entry) -> None:
        found = self.find(entry.query, entry.batch)
        if found is None:
            return  # a snapshot holds it; nobody can say what was in it
        there = {sealed.branch: sealed.seals for sealed in found.sealed}
        for sealed in entry.sealed:
            unnamed = (*sealed.branch[:3], None)  # as an earlier version wrote it
            if not within(sealed.seals, there.get(sealed.branch, there.get(unnamed, ()))):
                raise LakeRefused(
                    f"batch {entry.batch} of {entry.query} is in the lake with other slots than {_told(sealed)}: "
                    "the checkpoint does not belong to this lake"
                )

    def append(self, make: Callable[[int], Entry], query: str) -> Entry:
        """Make the next entry of a query that numbers its batches itself, and return it."""
        while True:
            entry = make(self.state().covered.get(query, -1) + 1)
            if self._create(entry_name(query, entry.batch), entry.to_json()):
                return entry

    def _create(self, name: str, block: bytes) -> bool:
        self._disk.make_folder(self.folder)
        writing = self.folder / f"{WRITING}{uuid.uuid4().hex}"
        with self._disk.create(writing) as file:
            file.write(block)
            self._disk.sync(file)
        made = self._disk.link(writing, self.folder / name)
        self._disk.remove(writing)
        self._disk.sync_folder(self.folder)
        return made

    def tidy(self) -> bool:
        """Write a snapshot if it is time to, and removes what earlier ones made useless; tells whether it wrote one.

        Invariant: one process at a time does so, so that a snapshot covers all that those before it do.
        """
        if self.state().entries < self._counted() + SNAPSHOT_EVERY:
            return False
        with FolderLock(self.folder / LOCK) as locked:
            state = self.state()
            if not locked or not state.dense or state.entries < self._counted() + SNAPSHOT_EVERY:
                return False
            data = self.folder.parent / DATA
            state.forget([path for path in state.removed if self._disk.changed_ms(data / path) is None])
            name = f"{_SNAPSHOT}-{state.entries:020}.json"
            self._create(name, state.to_json())
            self._snapshot = name
            self._remove_old()
        return True

    def _counted(self) -> int:
        found = _ENTRY.fullmatch(self._snapshot)
        return 0 if found is None else int(found["batch"])

    def _remove_old(self) -> None:
        names = self._disk.list(self.folder)
        limit_ms = self._clock_ms() - DAY_MS
        old = [name for name in names if name.startswith(f"{_SNAPSHOT}-") and self._older(name, limit_ms)]
        if not old:
            return
        covered = LakeState.from_json(self._disk.read(self.folder / old[-1]), old[-1]).covered
        for query, batch, name in _entries(names):
            if batch <= covered.get(query, -1):
                self._disk.remove(self.folder / name)
        for name in old[:-1]:
            self._disk.remove(self.folder / name)

    def _older(self, name: str, limit_ms: int) -> bool:
        changed_ms = self._disk.changed_ms(self.folder / name)
        return changed_ms is not None and changed_ms < limit_ms


def _entries(names: list[str]) -> Iterator[tuple[str, int, str]]:
    for name in names:
        found = _ENTRY.fullmatch(name)
        if found is not None and found["query"] != _SNAPSHOT:
            yield found["query"], int(found["batch"]), name


def _told(sealed: SealRange) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in sealed.seals) or "none"
