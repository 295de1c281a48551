"""A thread-safe `FaultyFiles` for a whole broker, which can no longer access the disk once it is dead.

A lock makes each file call atomic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from broker.store.files import File, Files
from tests.fault.faulty_files import FaultyFiles, PowerLost


class MortalFiles(Files):
    """The files of one broker process, on a disk that outlives it.

    Invariant: once `dead`, every call raises PowerLost and changes nothing.
    """

    def __init__(self, disk: FaultyFiles) -> None:
        self.disk = disk
        self.dead = False
        self._lock = RLock()

    def die(self) -> None:
        """End all access to the disk, after the call in progress."""
        with self._lock:
            self.dead = True

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Hold the lock for one file call. Raises: PowerLost."""
        with self._lock:
            if self.dead:
                raise PowerLost
            try:
                yield
            except PowerLost:
                self.dead = True
                raise

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        with self.alive():
            return MortalFile(path, self.disk.open(path, write=write, create=create), self)

    def exists(self, path: Path) -> bool:
        with self.alive():
            return self.disk.exists(path)

    def is_folder(self, path: Path) -> bool:
        with self.alive():
            return self.disk.is_folder(path)

    def size(self, path: Path) -> int:
        with self.alive():
            return self.disk.size(path)

    def links(self, folder: Path) -> list[str]:
        with self.alive():
            return self.disk.links(folder)

    def list(self, folder: Path) -> list[str]:
        with self.alive():
            return self.disk.list(folder)

    def mode(self, folder: Path) -> int:
        with self.alive():
            return self.disk.mode(folder)

    def make_folder(self, folder: Path) -> None:
        with self.alive():
            self.disk.make_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        with self.alive():
            self.disk.rename(source, target)

    def link(self, source: Path, target: Path) -> bool:
        with self.alive():
            return self.disk.link(source, target)

    def remove(self, path: Path) -> None:
        with self.alive():
            self.disk.remove(path)

    def remove_folder(self, folder: Path) -> None:
        with self.alive():
            self.disk.remove_folder(folder)

    def sync_folder(self, folder: Path) -> None:
        with self.alive():
            self.disk.sync_folder(folder)

    def lock(self, path: Path) -> File:
        with self.alive():
            return MortalFile(path, self.disk.lock(path), self)

    def lock_folder(self, folder: Path) -> File:
        with self.alive():
            return MortalFile(folder, self.disk.lock_folder(folder), self)

    def free_bytes(self, folder: Path) -> int:
        with self._lock:
            return self.disk.free_bytes(folder)

    def token(self, size: int) -> bytes:
        with self._lock:
            return self.disk.token(size)  # no file is touched


class MortalFile(File):
    """An open file of `MortalFiles`."""

    def __init__(self, path: Path, file: File, files: MortalFiles) -> None:
        super().__init__(path, -1)
        self._file = file
        self._files = files

    def read_at(self, offset: int, size: int) -> bytes:
        with self._files.alive():
            return self._file.read_at(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        with self._files.alive():
            return self._file.read_cached(offset, size)

    def write_at(self, offset: int, block: bytes) -> None:
        with self._files.alive():
            self._file.write_at(offset, block)

    def write_blocks_at(self, offset: int, blocks: list[bytes]) -> int:
        with self._files.alive():
            return self._file.write_blocks_at(offset, blocks)

    def write_pages_at(self, offset: int, pages: memoryview) -> None:
        with self._files.alive():
            self._file.write_pages_at(offset, pages)

    def write_zeros(self, offset: int, size: int) -> None:
        with self._files.alive():
            self._file.write_zeros(offset, size)

    def size(self) -> int:
        with self._files.alive():
            return self._file.size()

    def allocate(self, offset: int, size: int) -> None:
        with self._files.alive():
            self._file.allocate(offset, size)

    def truncate(self, size: int) -> None:
        with self._files.alive():
            self._file.truncate(size)

    def sync(self) -> None:
        with self._files.alive():
            self._file.sync()

    def drop_cache(self) -> None:
        with self._files.alive():
            self._file.drop_cache()

    def close(self) -> None:
        """Close the file even if the broker is dead: the kernel closes the files of a dead process."""
        self._file.close()
