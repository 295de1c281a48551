"""The reserve: disk space that a data folder holds back, so that a broker can start on a full disk and be drained.

A start frees the reserve before it writes anything, and allocates it again, piece by piece, once the disk has as much
free space next to it. Until then the missing part does not count as free, and the disk alarm is raised: publishers
cannot use the space that acks and checkpoints need. The files of other programs can.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broker.event_log import get_logger
from broker.store.damage import StoreFailed
from broker.store.files import Files

__all__ = ["Reserve"]

NAME: Final = "reserve"
PIECE_BYTES: Final = 8 * 1024 * 1024  # allocated in one call, or written where the system cannot allocate

_log = get_logger()


class Reserve:
    """The reserve of one data folder. All methods are *blocking*, about as long as a `statvfs`.

    Units: ``size_bytes`` is the configured reserve, ``missing_bytes`` the part of it that is not allocated.
    """

    def __init__(self, files: Files, folder: Path, size_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._path = folder / NAME
        self.size_bytes = size_bytes
        self.missing_bytes = size_bytes

    def give_up(self) -> None:
        """Free the reserve of the last run. Raises: StoreFailed."""
        self.missing_bytes = self.size_bytes
        if self._files.exists(self._path):
            self._files.remove(self._path)
            self._files.sync_folder(self._folder)  # some file systems free the blocks only then

    def free_bytes(self) -> int:
        """Return the free space of the disk less the missing part of the reserve."""
        return max(0, self._files.free_bytes(self._folder) - self.missing_bytes)

    def take(self) -> None:
        """Allocate as much of the reserve as there is room for. *Blocking.*"""
        while self.take_piece():
            pass

    def take_piece(self) -> bool:
        """Allocate the next piece of the reserve if there is room; return whether it was allocated.

        A piece that the disk refuses (a quota) is logged and tried again later.
        """
        if not self.missing_bytes or self.free_bytes() < self.size_bytes:
            return False
        piece_bytes = min(PIECE_BYTES, self.missing_bytes)
        try:
            file = self._files.open(self._path, create=True)
            try:
                file.allocate(self.size_bytes - self.missing_bytes, piece_bytes)
            finally:
                file.close()
        except StoreFailed as error:
            _log.warning("disk.reserve_refused", reason=str(error), missing_bytes=self.missing_bytes)
            return False
        self.missing_bytes -= piece_bytes
        return True
