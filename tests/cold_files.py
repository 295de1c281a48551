"""Real files that are not in the page cache, for tests of code that waits for the disk."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

from broker.store.files import File, Files


class ColdFiles(Files):
    """Real files that seem to be missing in the page cache, at every read or at those where `warm` is false in turn."""

    def __init__(self, *warm: bool) -> None:
        self.warm = cycle(warm or (False,))

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        return ColdFile(super().open(path, write=write, create=create), self)


class ColdFile(File):
    """A file of `ColdFiles`."""

    def __init__(self, file: File, files: ColdFiles) -> None:
        super().__init__(file.path, os.dup(file._descriptor))
        file.close()
        self._files = files

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the cached bytes at a warm read, otherwise None."""
        return super().read_cached(offset, size) if next(self._files.warm) else None
