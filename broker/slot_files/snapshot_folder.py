"""The snapshot folder: slot files with the present messages of a queue, for a reader without a tap.

    <id>/<n>.slot    n from 0 on; seal 0

A start removes them, so they are not synced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.slot_files.slot_file import SlotMeta
from broker.slot_files.slot_file_writer import SlotDraft
from broker.store.files import Files

__all__ = ["SnapshotFolder", "SnapshotSlot"]

_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class SnapshotSlot:
    """One slot file of a snapshot. Shapes: the last fields are those of a seal."""

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
        """Create the folder if need be and empty it. Raises: StoreFailed."""
        self._files.make_folder(self.folder)
        for name in self._files.list(self.folder):
            self._remove(self.folder / name)

    def new(self) -> str:
        """Return the id of a new snapshot without slot files; it cannot be guessed. Raises: StoreFailed."""
        snapshot = self._files.token(8).hex()
        self._files.make_folder(self.folder / snapshot)
        return snapshot

    def free_bytes(self) -> int:
        """Return how many bytes the disk has free. Raises: StoreFailed."""
        return self._files.free_bytes(self.folder)

    def disk_bytes(self) -> int:
        """Return how large the disk is. Raises: StoreFailed."""
        return self._files.disk_bytes(self.folder)

    def path(self, snapshot: str, n: int) -> Path:
        """Return the path of a slot file, which may not exist. Raises: ValueError for a name that is not an id."""
        if not _ID.fullmatch(snapshot):
            raise ValueError(f"{snapshot!r} is not an id of a snapshot")
        return self.folder / snapshot / f"{n}.slot"

    def draft(self, snapshot: str, n: int, vhost: str, queue: str, number: int, first: int) -> SlotDraft:
        """Begin one slot file. Raises: StoreFailed."""
        meta = SlotMeta(self._store, 0, vhost, queue, number, first, incarnation=self._incarnation)
        return SlotDraft.begin(self._files, self.path(snapshot, n), meta)

    def finish(self, draft: SlotDraft, end: int) -> SnapshotSlot:
        """Finish one slot file. Raises: StoreFailed."""
        meta, size_bytes, crc = draft.finish(end, sync=False)
        return SnapshotSlot(int(draft.path.stem), meta.first, meta.end, meta.count, size_bytes, crc)

    def drop(self, snapshot: str) -> None:
        """Remove a snapshot, if it exists. Raises: ValueError as `path`; StoreFailed."""
        self._remove(self.path(snapshot, 0).parent)

    def _remove(self, path: Path) -> None:
        if not self._files.is_folder(path):
            self._files.remove(path)
            return
        for name in self._files.list(path):
            self._remove(path / name)
        self._files.remove_folder(path)
