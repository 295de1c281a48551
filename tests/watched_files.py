"""Files in memory whose calls a test watches, counts or lets fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker.store.files import File
from broker.store.memory_files import FileContent, MemoryFile, MemoryFiles

__all__ = ["WatchedFiles", "ignore"]


def ignore(_call: str, _path: Path) -> None:
    """Do nothing."""


class WatchedFiles(MemoryFiles):
    """Files that call `look` before each call, with its name and the path; `durable` has what was synced."""

    def __init__(self, folder: Path, look: Callable[[str, Path], object] = ignore) -> None:
        super().__init__()
        self.make_folder(folder)
        self.look = look
        self.durable: dict[Path, bytes] = {}
        self.written_bytes = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file: to create it, to write, or to read."""
        self.look("create" if create else "open" if write else "read", path)
        super().open(path, write=write, create=create)
        return WatchedFile(path, self.contents[path], self)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.look("remove", path)
        super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder."""
        self.look("sync folder", folder)
        super().sync_folder(folder)


class WatchedFile(MemoryFile):
    """An open file."""

    def __init__(self, path: Path, content: FileContent, files: WatchedFiles) -> None:
        super().__init__(path, content)
        self._files = files

    def write_at(self, offset: int, block: bytes) -> None:
        """Write, and count the bytes."""
        self._files.look("write", self.path)
        self._files.written_bytes += len(block)
        super().write_at(offset, block)

    def sync(self) -> None:
        """Make durable what the file has at the beginning of the sync: a later write may miss it."""
        block = bytes(self._content.block)
        self._files.look("sync", self.path)
        self._files.durable[self.path] = block

    def close(self) -> None:
        """Close the file."""
        self._files.look("close", self.path)
        super().close()
