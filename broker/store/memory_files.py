"""Files in memory: a second implementation of `Files`, for tests, simulated brokers and rehearsals of changes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crc32c import crc32c

from broker.store.damage import FolderBusy, StoreFailed
from broker.store.files import File, Files

NO_SUCH_FILE: Final = "No such file or directory"
NOT_EMPTY: Final = "Directory not empty"


class FileContent:
    """The content of a file, independent of its name."""

    def __init__(self) -> None:
        self.block = bytearray()
        self._locked = False

    def lock(self) -> bool:
        """Acquire the lock and return whether it was free."""
        free, self._locked = not self._locked, True
        return free

    def unlock(self) -> None:
        self._locked = False


class MemoryFile(File):
    """One open file in memory."""

    def __init__(self, path: Path, content: FileContent) -> None:
        super().__init__(path, -1)
        self.direct = True
        self._content = content
        self._locked = False

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._content.block[offset : offset + size])

    def read_cached(self, offset: int, size: int) -> bytes | None:
        return self.read_at(offset, size)

    def write_at(self, offset: int, block: bytes) -> None:
        held = self._content.block
        if offset > len(held):
            held.extend(bytes(offset - len(held)))
        held[offset : offset + len(block)] = block

    def write_blocks_at(self, offset: int, blocks: list[bytes]) -> int:
        for block in blocks:
            self.write_at(offset, block)
            offset += len(block)
        return offset

    def write_pages_at(self, offset: int, pages: memoryview) -> None:
        self.write_at(offset, bytes(pages))

    def write_zeros(self, offset: int, size: int) -> None:
        self.write_at(offset, bytes(size))

    def size(self) -> int:
        return len(self._content.block)

    def allocate(self, offset: int, size: int) -> None:
        self.write_at(offset, bytes(size))

    def truncate(self, size: int) -> None:
        held = self._content.block
        del held[size:]
        held.extend(bytes(size - len(held)))

    def sync(self) -> None:
        """Do nothing: memory has no disk."""

    def drop_cache(self) -> None:
        """Do nothing: there is no cache."""

    def try_lock(self, folder: Path) -> OSError | None:
        """Lock the file; locks are always supported."""
        if not self._content.lock():
            raise FolderBusy(folder)
        self._locked = True
        return None

    def close(self) -> None:
        if self._locked:
            self._content.unlock()
            self._locked = False


class MemoryFiles(Files):
    """A tree of files in memory. Shapes: ``contents`` maps a path to the content of the file."""

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self._free_bytes = free_bytes
        self._tokens = 0
        self.contents: dict[Path, FileContent] = {}
        self.folders: set[Path] = set()
        self._folder_locks: dict[Path, FileContent] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        content = self.contents.get(path)
        if content is None:
            if not create or path.parent not in self.folders:
                raise StoreFailed(path, NO_SUCH_FILE)
            content = self._create(path)
        return MemoryFile(path, content)

    def exists(self, path: Path) -> bool:
        return path in self.contents or path in self.folders

    def links(self, folder: Path) -> list[str]:
        return []

    def mode(self, folder: Path) -> int:
        return 0o700

    def is_folder(self, path: Path) -> bool:
        return path in self.folders

    def size(self, path: Path) -> int:
        return self.open(path).size()

    def list(self, folder: Path) -> list[str]:
        if folder not in self.folders:
            raise StoreFailed(folder, NO_SUCH_FILE)
        return sorted(path.name for path in (*self.contents, *self.folders) if path.parent == folder)

    def make_folder(self, folder: Path) -> None:
        self.folders.update((folder, *folder.parents))

    def rename(self, source: Path, target: Path) -> None:
        if source in self.folders:
            self.folders = {moved(path, source, target) for path in self.folders}
            self.contents = {moved(path, source, target): content for path, content in self.contents.items()}
            return
        if source not in self.contents:
            raise StoreFailed(source, NO_SUCH_FILE)
        self.contents[target] = self.contents.pop(source)

    def link(self, source: Path, target: Path) -> bool:
        if source not in self.contents or target.parent not in self.folders:
            raise StoreFailed(target, NO_SUCH_FILE)
        self.contents[target] = self.contents[source]
        return True

    def remove(self, path: Path) -> None:
        self.contents.pop(path, None)

    def remove_folder(self, folder: Path) -> None:
        if any(path.parent == folder for path in (*self.contents, *self.folders)):
            raise StoreFailed(folder, NOT_EMPTY)
        self.folders.discard(folder)

    def sync_folder(self, folder: Path) -> None:
        if folder not in self.folders:
            raise StoreFailed(folder, NO_SUCH_FILE)

    def lock_folder(self, folder: Path) -> File:
        file = MemoryFile(folder, self._folder_locks.setdefault(folder, FileContent()))
        file.try_lock(folder)
        return file

    def free_bytes(self, folder: Path) -> int:
        return self._free_bytes - sum(len(content.block) for content in self.contents.values())

    def disk_bytes(self, folder: Path) -> int:
        return self._free_bytes

    def token(self, size: int) -> bytes:
        """Return different bytes on each call, but the same sequence from every instance."""
        self._tokens += 1
        words = (crc32c(f"{self._tokens}/{word}".encode()) for word in range((size + 3) // 4))
        return b"".join(word.to_bytes(4, "big") for word in words)[:size]

    def _create(self, path: Path) -> FileContent:
        content = self.contents[path] = FileContent()
        return content


def moved(path: Path, source: Path, target: Path) -> Path:
    """Return the path that `path` becomes when `source` is renamed to `target`."""
    return target / path.relative_to(source) if path.is_relative_to(source) else path
