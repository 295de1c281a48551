"""The folder of the slot files: DATA/slots, with the seal log that lists them.

    seals.log                 see `seal_log`
    <seal, 20 digits>.slot    see `slot_file`; a damaged one is kept for the operator, with .damaged appended
    snapshots/<id>/<n>.slot   n counts from 0, the seal is 0; not synced, because a start of the broker removes them

A slot file and its name are on disk before the log lists the file, and a release is on disk before its files are
removed. So every listed file exists, and the next start removes unlisted files. It keeps and lists only a complete file
whose seal is above the last one in the log: a reader may have seen the file before a crash tore the log, and no seal
may name two files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from broker.event_log import get_logger
from broker.slot_files.seal_log import Gap, Released, Seal
from broker.slot_files.seal_log_file import SealLog
from broker.slot_files.seal_view import SealView
from broker.slot_files.slot_file import BadSlotFile, SlotMeta
from broker.slot_files.slot_file_writer import SlotFileWriter
from broker.slot_files.slot_view import open_slot
from broker.store.files import Files

MISSING: Final = "missing"
DAMAGED: Final = "damaged"

_NAME: Final = re.compile(r"(\d{20})\.slot(\.unfinished)?")

_log = get_logger()


@dataclass(frozen=True, slots=True)
class SnapshotSlot:
    """One slot file of a snapshot. Shapes: the fields after `n` are as in `Seal`."""

    n: int
    first: int
    end: int
    count: int
    bytes: int
    crc: int


class SnapshotFolder:
    """The snapshots of a data folder. All methods except ``path`` are *blocking*."""

    def __init__(self, files: Files, folder: Path, store: str, incarnation: str) -> None:
        self.folder = folder
        self._files = files
        self._store = store
        self._incarnation = incarnation

    def open(self) -> None:
        """Create the folder if it is missing, and empty it. Raises: StoreFailed."""
        self._files.make_folder(self.folder)
        for name in self._files.list(self.folder):
            self._files.remove_tree(self.folder / name)

    def new(self) -> str:
        """Create an empty snapshot, and return its id, which cannot be guessed. Raises: StoreFailed."""
        snapshot = self._files.token(8).hex()
        self._files.make_folder(self.folder / snapshot)
        return snapshot

    def disk_bytes(self) -> int:
        """Return the size of the disk. Raises: StoreFailed."""
        return self._files.disk_bytes(self.folder)

    def path(self, snapshot: str, n: int) -> Path:
        """Return the path of a slot file, which may not exist. Shapes: `snapshot` is an id that `new` returned."""
        return self.folder / snapshot / f"{n}.slot"

    def begin(self, snapshot: str, n: int, vhost: str, queue: str, number: int, first: int) -> SlotFileWriter:
        """Begin one slot file. Raises: StoreFailed."""
        meta = SlotMeta(self._store, 0, vhost, queue, number, first, incarnation=self._incarnation)
        return SlotFileWriter(self._files, self.path(snapshot, n), meta)

    def finish(self, file: SlotFileWriter, end: int) -> SnapshotSlot:
        """Finish one slot file. Raises: StoreFailed."""
        meta, size_bytes, crc = file.finish(end)
        return SnapshotSlot(int(file.path.stem), meta.first, meta.end, meta.count, size_bytes, crc)

    def drop(self, snapshot: str) -> None:
        """Remove a snapshot, if it exists. Raises: StoreFailed."""
        self._files.remove_tree(self.path(snapshot, 0).parent)


class SlotFolder:
    """The slot files of a data folder, in the process that writes them. All methods except `path` are *blocking*; one
    thread calls them.

    Shapes: `log` also records cursors; any thread may read `log.view`.
    Invariant: after StoreFailed nothing more may be sealed.
    """

    def __init__(
        self, files: Files, folder: Path, log: SealLog, *, sync: bool, ahead_ms: int = 0, incarnation: str = ""
    ) -> None:
        self.folder = folder
        self._ahead_ms = ahead_ms
        self.log = log
        self.snapshots = SnapshotFolder(files, folder / "snapshots", log.view.store, incarnation)
        self._incarnation = incarnation
        self._files = files
        self._sync = sync

    @classmethod
    def open(
        cls,
        files: Files,
        folder: Path,
        *,
        sync: bool = True,
        ahead_ms: int = 0,
        incarnation: str = "",
        expected: bool = False,
        quarantine: bool = False,
    ) -> SlotFolder:
        """Open the folder, create it if it is missing, and remove old snapshots and files left behind by a crash.

        A listed slot file that is missing, or is not as long as its line says, becomes a gap.
        Shapes: `incarnation` identifies this run of the broker in the files that it writes. `expected` and
            `quarantine` are those of `SealLog.open`.
        Raises: CorruptFile when the seal log is damaged; MissingData; NewerFormat; StoreFailed.
        """
        files.make_folder(folder)
        files.sync_folder(folder.parent)
        log = SealLog.open(files, folder, sync=sync, expected=expected, quarantine=quarantine)
        opened = cls(files, folder, log, sync=sync, ahead_ms=ahead_ms, incarnation=incarnation)
        opened._sweep()
        opened.snapshots.open()
        return opened

    @property
    def view(self) -> SealView:
        """The state of the seal log."""
        return self.log.view

    def free_bytes(self) -> int:
        return self._files.free_bytes(self.folder)

    def path(self, seal: int) -> Path:
        """Return the path of the slot file of a seal, which may not exist."""
        return self.folder / f"{seal:020}.slot"

    def begin(self, vhost: str, queue: str, number: int, first: int) -> SlotFileWriter:
        """Begin the slot file of the next seal; only one may be unfinished at a time. Raises: StoreFailed."""
        seal = self.log.next_seal
        meta = SlotMeta(self.view.store, seal, vhost, queue, number, first, incarnation=self._incarnation)
        return SlotFileWriter(self._files, self.path(seal), meta)

    def seal(self, file: SlotFileWriter, end: int, ahead_ms: int = 0) -> Seal:
        """Finish the slot file; unless syncs are off, the file and its line are then on disk. Raises: StoreFailed.

        Units: `ahead_ms` as in `Seal`.
        """
        meta, size_bytes, crc = file.finish(end, sync=self._sync)
        if self._sync:
            self._files.sync_folder(self.folder)
        seal = seal_of(meta, size_bytes, crc, ahead_ms)
        self.log.append(seal)
        return seal

    def remove(self, passed: Iterable[Seal], forced: Iterable[tuple[Seal, str]] = ()) -> None:
        """Remove the oldest slot files of queues; those in `forced` leave gaps with a reason. Raises: StoreFailed."""
        gone, lost = list(passed), list(forced)
        self._release(gone)  # first, so that no reader sees a gap after a file that all cursors passed
        for seal, reason in lost:
            self.log.append(gap_of(seal, reason))
        self._release(seal for seal, _ in lost)
        for seal in (*gone, *(seal for seal, _ in lost)):
            self._files.remove(self.path(seal.seal))

    def _release(self, seals: Iterable[Seal]) -> None:
        last = {seal.key: seal for seal in sorted(seals, key=lambda one: one.seal)}
        for seal in last.values():
            self.log.append(Released(seal.vhost, seal.queue, seal.number, seal.seal, seal.end))

    def close(self) -> None:
        """Close the log. A second call does nothing."""
        self.log.close()

    # -- after a crash ------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        last_seal = self.view.last_seal
        found = set()
        for name in self._files.list(self.folder):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            path, seal = self.folder / name, int(match[1])
            if match[2] is None and (self.view.seal(seal) or (seal > last_seal and self._list(path, seal))):
                found.add(seal)
            else:
                _log.info("slot_file.orphan_removed", path=str(path))
                self._files.remove(path)
        for one in self.view.seals:
            path = self.path(one.seal)
            if one.seal not in found:
                self._record_loss(one, MISSING)
            elif self._files.size(path) != one.bytes:
                self._files.rename(path, path.with_name(f"{path.name}.damaged"))
                self._record_loss(one, DAMAGED)

    def _list(self, path: Path, seal: int) -> bool:
        """List a file if it is complete, undamaged and has this store and seal; return whether it was listed."""
        block = self._files.read(path)
        try:
            view = open_slot(block)
        except BadSlotFile:
            return False
        meta = view.meta
        if (meta.store, meta.seal) != (self.view.store, seal) or view.verify():
            return False
        # A failed sync may have left these bytes only in the page cache, so a copy is written and synced.
        self._files.replace(path, [block], sync=self._sync).close()
        self.log.append(seal_of(meta, len(block), view.crc, self._ahead_ms))
        _log.info("slot_file.taken_in", path=str(path), seal=seal, messages=meta.count)
        return True

    def _record_loss(self, seal: Seal, reason: str) -> None:
        _log.error("slot_file.lost", path=str(self.path(seal.seal)), seal=seal.seal, reason=reason)
        self.log.append(gap_of(seal, reason))


def seal_of(meta: SlotMeta, size_bytes: int, crc: int, ahead_ms: int = 0) -> Seal:
    """Return the seal of a slot file."""
    fields = asdict(meta)
    del fields["store"]
    return Seal(**fields, bytes=size_bytes, crc=crc, ahead_ms=ahead_ms)


def gap_of(seal: Seal, reason: str) -> Gap:
    """Return the gap that a slot file leaves."""
    return Gap(seal.seal, seal.vhost, seal.queue, seal.number, seal.first, seal.end, seal.count, seal.bytes, reason)
