"""Files in memory that call back to a test, which can count calls or let them fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker.store.files import File
from broker.store.memory_files import FileContent, MemoryFile, MemoryFiles

__all__ = ["WatchedFiles", "ignore"]


def ignore(_call: str, _path: Path) -> None:
    """Do nothing."""


class WatchedFiles(MemoryFiles):
    """Files that call `before` with the name and path of each call; `durable` contains the synced bytes."""

    def __init__(self, folder: Path, before: Callable[[str, Path], object] = ignore) -> None:
        super().__init__()
        self.make_folder(folder)
        self.before = before
        self.durable: dict[Path, bytes] = {}
        self.written_bytes = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file: to create it, to write, or to read."""
        self.before("create" if create else "open" if write else "read", path)
        super().open(path, write=write, create=create)
        return WatchedFile(path, self.contents[path], self)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.before("remove", path)
        super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder."""
        self.before("sync folder", folder)
        super().sync_folder(folder)


class WatchedFile(MemoryFile):
    """An open file of WatchedFiles."""

    def __init__(self, path: Path, content: FileContent, files: WatchedFiles) -> None:
        super().__init__(path, content)
        self._files = files

    def write_at(self, offset: int, block: bytes) -> None:
        """Write, and count the bytes."""
        self._files.before("write", self.path)
        self._files.written_bytes += len(block)
        super().write_at(offset, block)

    def sync(self) -> None:
        """Make the bytes durable that the file has at the start of the sync."""
        block = bytes(self._content.block)
        self._files.before("sync", self.path)
        self._files.durable[self.path] = block

    def close(self) -> None:
        """Close the file."""
        self._files.before("close", self.path)
        super().close()
