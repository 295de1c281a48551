"""Real files; the syncs of the log wait for the test, and may fail then."""

from __future__ import annotations

import threading
from pathlib import Path

from broker.store.damage import StoreFailed
from broker.store.files import File, Files
from tests.deadline import DEADLINE_S

__all__ = ["GatedFiles"]


class GatedFiles(Files):
    """Files whose log is synced when the test allows it.

    Units: ``syncs`` counts the syncs of the log that returned.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False
        self.syncs = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file; one of the log is gated."""
        file = super().open(path, write=write, create=create)
        return GatedFile(file, self) if path.parent.name == "log" else file


class GatedFile(File):
    """A file of the log."""

    def __init__(self, file: File, files: GatedFiles) -> None:
        super().__init__(file.path, file._descriptor)
        self._files = files

    def sync(self) -> None:
        """Wait, then sync. Raises: StoreFailed once the disk is broken."""
        assert self._files.gate.wait(DEADLINE_S)
        if self._files.is_broken:
            raise StoreFailed(self.path, "Input/output error")
        self._files.syncs += 1
        super().sync()
