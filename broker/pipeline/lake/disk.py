"""The file calls of a lake, so that a test's twin can die at each of them.

What has to outlive a power loss is synced before the next step: a file's bytes, then the folder that names it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

__all__ = ["Disk"]


class Disk:
    """The operating system's files."""

    def create(self, path: Path) -> BinaryIO:
        """Open a new file to write. Raises: FileExistsError."""
        return path.open("xb")

    def sync(self, file: BinaryIO) -> None:
        """Return when the file's bytes are on disk."""
        file.flush()
        os.fsync(file.fileno())

    def sync_file(self, path: Path) -> None:
        """Return when the bytes of a file that somebody else wrote are on disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on disk."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; tells whether that name was free."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        return True

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step."""
        source.rename(target)

    def remove(self, path: Path) -> bool:
        """Remove a file; tells whether it was there."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def read(self, path: Path) -> bytes:
        """Return a whole file. Raises: FileNotFoundError."""
        return path.read_bytes()

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; none where there is no folder."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def changed_ms(self, path: Path) -> int | None:
        """Return when a file was last written, None where it is gone."""
        try:
            return path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def make_folder(self, folder: Path) -> None:
        """Make a folder with its parents, and sync the folders that name them."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            self.sync_folder(made.parent)
