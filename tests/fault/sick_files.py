"""Real files on a disk with unreadable sectors."""

from __future__ import annotations

from pathlib import Path

from broker.store.damage import SECTOR_BYTES, StoreFailed
from broker.store.files import File, Files

REASON = "Input/output error"


class SickFiles(Files):
    """Real files; ``bad`` maps paths to the numbers of their unreadable sectors."""

    def __init__(self) -> None:
        self.bad: dict[Path, set[int]] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file whose reads may fail."""
        file = super().open(path, write=write, create=create)
        return SickFile(file, self)


class SickFile(File):
    """A file on a failing disk."""

    def __init__(self, file: File, files: SickFiles) -> None:
        super().__init__(file.path, file._descriptor)
        self._files = files

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes. Raises: StoreFailed when they include a bad sector."""
        if self._is_bad(offset, size):
            raise StoreFailed(self.path, REASON)
        return super().read_at(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return cached bytes, or None when they include a bad sector: it is not in the page cache."""
        return None if self._is_bad(offset, size) else super().read_cached(offset, size)

    def _is_bad(self, offset: int, size: int) -> bool:
        bad = self._files.bad.get(self.path, set())
        sectors = range(offset // SECTOR_BYTES, (offset + max(size, 1) - 1) // SECTOR_BYTES + 1)
        return not bad.isdisjoint(sectors)
