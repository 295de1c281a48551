"""Real files on which a test can block one kind of call and let it fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from broker.store.damage import StoreFailed
from broker.store.files import File, Files
from tests.deadline import DEADLINE_S

IO_ERROR = "Input/output error"
NO_SPACE = "No space left on device"


def of_log(path: Path) -> bool:
    """Return whether a file belongs to the log."""
    return path.parent.name == "log"


class GatedFiles(Files):
    """Files whose gated calls wait until the gate is open, as it is at first, and fail while `fails` has a reason.

    Shapes: ``call`` is the gated call: open, write, sync, remove, rename or sync_folder; it is gated for files chosen
    by ``gated``. ``arrived`` counts the gated calls, ``passed`` those that continued; ``held`` counts open gated files.
    """

    def __init__(self, call: str = "sync", gated: Callable[[Path], bool] = of_log) -> None:
        super().__init__()
        self.call = call
        self._gated = gated
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.stepwise = False  # each call that passes closes the gate
        self.fails = ""
        self.arrived = self.passed = self.held = 0

    def enter(self, call: str, path: Path) -> None:
        """Wait if this call is gated. Raises: StoreFailed."""
        if call != self.call or not self._gated(path):
            return
        self.arrived += 1
        self.reached.set()
        assert self.gate.wait(DEADLINE_S)
        if self.stepwise:
            self.gate.clear()
        if self.fails:
            raise StoreFailed(path, self.fails)
        self.passed += 1

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file."""
        self.enter("open", path)
        file = super().open(path, write=write, create=create)
        if not self._gated(path):
            return file
        self.held += 1
        return GatedFile(file, self)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.enter("remove", path)
        super().remove(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file to a target that may be gated."""
        self.enter("rename", target)
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder."""
        self.enter("sync_folder", folder)
        super().sync_folder(folder)


class GatedFile(File):
    """A file of `GatedFiles`."""

    def __init__(self, file: File, files: GatedFiles) -> None:
        super().__init__(file.path, file._descriptor)
        self._files = files

    def write_at(self, offset: int, block: bytes) -> None:
        """Write."""
        self._files.enter("write", self.path)
        super().write_at(offset, block)

    def write_blocks_at(self, offset: int, blocks: list[bytes]) -> int:
        """Write blocks, at one gate."""
        self._files.enter("write", self.path)
        return super().write_blocks_at(offset, blocks)

    def sync(self) -> None:
        """Sync."""
        self._files.enter("sync", self.path)
        super().sync()

    def close(self) -> None:
        """Close."""
        self._files.held -= 1
        super().close()
