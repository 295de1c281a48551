"""A disk in memory with a fixed size."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from broker.store.damage import StoreFailed
from broker.store.files import File
from broker.store.memory_files import FileContent, MemoryFile, MemoryFiles

NO_SPACE = "No space left on device"


class SmallDisk(MemoryFiles):
    """Files on a disk of limited size, of which ``others_bytes`` are used by other programs."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.others_bytes = 0

    def free_bytes(self, folder: Path) -> int:
        return super().free_bytes(folder) - self.others_bytes

    def fill(self) -> None:
        """Fill the free space with the files of other programs."""
        self.others_bytes += self.free_bytes(Path("/"))

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        super().open(path, write=write, create=create)
        return SmallDiskFile(path, self.contents[path], self)


class SmallDiskFile(MemoryFile):
    """An open file of `SmallDisk`; a write that does not fit fails."""

    def __init__(self, path: Path, content: FileContent, disk: SmallDisk) -> None:
        super().__init__(path, content)
        self._disk = disk

    def write_at(self, offset: int, block: bytes) -> None:
        if offset + len(block) - self.size() > max(0, self._disk.free_bytes(self.path)):
            raise StoreFailed(self.path, NO_SPACE)
        super().write_at(offset, block)

    def write_zeros(self, offset: int, size: int) -> None:
        with suppress(StoreFailed):
            self.write_at(offset, bytes(size))
