"""Reads the seal log of a data folder as it grows, from another process than the one that writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

from broker.pipeline.faults import SourceRefused
from broker.slot_files.seal_log import BadSealLine, decode_lines
from broker.slot_files.seal_view import SealView

__all__ = ["SealReader"]

REMEMBERED_BYTES: Final = 256


class SealReader:
    """Reads what is new in a seal log at each look.

    Invariant: goes on behind the last whole line it has read; starts over when that is another file now, or when what
        stood before is not there any more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start_over(0)

    def _start_over(self, inode: int) -> None:
        self._inode = inode
        self._at = 0
        self._before = b""  # the last bytes in front of that place
        self._view = SealView()

    def view(self) -> SealView:
        """Return what the log says now; the same view while the log only grows. Raises: SourceRefused."""
        try:
            with self._path.open("rb") as log:
                block = self._news(log)
        except FileNotFoundError:
            folder = self._path.parent.parent
            hint = "is it a data folder, and did a broker with slots run on it?"
            raise SourceRefused(f"no slots in {folder}: there is no {self._path.name} ({hint})") from None
        except OSError as error:
            raise SourceRefused(f"{self._path} cannot be read: {error.strerror or error}") from None
        try:
            lines, size = decode_lines(block)
            for line in lines:
                self._view.fold(line)
        except BadSealLine as error:
            raise SourceRefused(f"{self._path} cannot be read: {error}") from None
        self._at += size
        self._before = (self._before + block[:size])[-REMEMBERED_BYTES:]
        return self._view

    def _news(self, log: BinaryIO) -> bytes:
        inode = os.fstat(log.fileno()).st_ino
        log.seek(self._at - len(self._before))
        block = log.read()
        if inode == self._inode and block.startswith(self._before):
            return block[len(self._before) :]
        # Rewritten, and renamed to this name; a file system gives an inode away again.
        self._start_over(inode)
        log.seek(0)
        return log.read()
