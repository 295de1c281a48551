"""The file calls of a lake, on folders and in buckets. A test's substitute can fail at each call.

Data that must survive a power loss is synced before the next step: a file's bytes, then the folder that names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

__all__ = ["Disk", "ObjectDisk"]

BUFFER_BYTES: Final = 1 << 20  # the package's stream accepts Python's bytes only through a buffer


class Disk:
    """The operating system's files."""

    def create(self, path: Path) -> BinaryIO:
        """Open a new file for writing. Raises: FileExistsError."""
        return path.open("xb")

    def sync(self, file: BinaryIO) -> None:
        """Sync the file's bytes to disk."""
        file.flush()
        os.fsync(file.fileno())

    def sync_file(self, path: Path) -> None:
        """Sync the bytes of a file that another writer wrote to disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        """Sync the names in a folder to disk."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; return whether that name was free."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        return True

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically."""
        source.rename(target)

    def remove(self, path: Path) -> bool:
        """Remove a file; return whether it existed."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def read(self, path: Path) -> bytes:
        """Return a whole file. Raises: FileNotFoundError."""
        return path.read_bytes()

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder does not exist."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def make_folder(self, folder: Path) -> None:
        """Create a folder with its parents, and sync the folders that name them."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            self.sync_folder(made.parent)


class ObjectDisk(Disk):
    """The objects of a bucket, by paths below a URL. An object is durable when its file is closed."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        self.files: Any = PyFileSystem(DeltaStorageHandler(uri, dict(options)))

    def create(self, path: Path) -> BinaryIO:
        made: BinaryIO = self.files.open_output_stream(path.as_posix(), buffer_size=BUFFER_BYTES)
        return made

    def sync(self, file: BinaryIO) -> None:
        pass

    def sync_file(self, path: Path) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass

    def remove(self, path: Path) -> bool:
        if not self.files.get_file_info(path.as_posix()).is_file:
            return False
        self.files.delete_file(path.as_posix())
        return True

    def read(self, path: Path) -> bytes:
        with self.files.open_input_file(path.as_posix()) as file:
            return bytes(file.read())

    def list(self, folder: Path) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self.files.get_file_info(FileSelector(folder.as_posix(), allow_not_found=True))
        return sorted(info.base_name for info in found)

    def make_folder(self, folder: Path) -> None:
        pass
