"""The segment that the log writes to: records, and zeros ahead of them.

A sync of a file that has grown also writes the journal of the file system, which takes about as long as the records. So
small batches fill the file with zeros ahead of them, in steps of its own length, and the next ones overwrite these.
A reader takes zeros up to the end of a segment for its end. Only the last segment has any: zeros end where the segment
is full, and the log begins the next one behind a record that reaches that far.

Large batches of large bodies bypass the page cache, where records cost several times as much: see `direct_writer`.
"""

from __future__ import annotations

from typing import Final

from broker.store.batch import SegmentRun
from broker.store.direct_writer import DirectWriter
from broker.store.files import File
from broker.store.segment import AHEAD_MAX_BYTES

__all__ = ["SegmentFile"]

SMALL_BYTES: Final = 16 << 10  # a larger batch would be written twice, and takes longer than the journal anyway
DIRECT_MIN_BYTES: Final = 512 << 10  # the least of a batch with large bodies that pays for a direct write


class SegmentFile:
    """One segment, open for writing; with ``direct`` each write is synced soon, and large ones bypass the page cache.

    Units: ``end`` is where its records end, in bytes.
    """

    __slots__ = ("_direct", "_file", "_writer", "_zeros_end", "end")

    def __init__(self, file: File, *, direct: bool) -> None:
        self._file = file
        self._direct = direct
        self._writer: DirectWriter | None = None
        self._zeros_end = 0
        self.end = 0

    def write(self, run: SegmentRun) -> None:
        """Write the records of a run. Raises: StoreFailed.

        Cost: one copy of the records, none of a large body that goes through the page cache.
        """
        if not run.bodies:
            block = b"".join(run.pieces)
            self._file.write_at(run.offset, block)
            self.end = run.offset + len(block)
            return
        blocks = []
        start = 0
        for at in run.bodies:
            blocks.append(b"".join(run.pieces[start:at]))
            blocks.append(run.pieces[at])
            start = at + 1
        blocks.append(b"".join(run.pieces[start:]))
        if self._direct and self._file.direct and sum(map(len, blocks)) >= DIRECT_MIN_BYTES:
            if self._writer is None:
                self._writer = DirectWriter()
            self.end = self._writer.write(self._file, run.offset, blocks)
        else:
            self.end = self._file.write_blocks_at(run.offset, blocks)

    def fill_ahead(self, written_bytes: int, limit: int) -> None:
        """Write zeros ahead, up to the limit at which the segment is full, behind a small batch that used them up.

        Raises: StoreFailed, but not for a full disk: the records are written, and zeros save time only.
        """
        ahead_bytes = min(self.end, AHEAD_MAX_BYTES, limit - self.end)
        if self.end <= self._zeros_end or written_bytes > SMALL_BYTES or ahead_bytes <= 0:
            return
        self._zeros_end = self.end + ahead_bytes
        self._file.write_zeros(self.end, ahead_bytes)

    def cut(self) -> None:
        """Cut off the zeros behind the records. Raises: StoreFailed."""
        if self._zeros_end > self.end:
            self._file.truncate(self.end)
            self._zeros_end = 0

    def sync(self) -> None:
        """Sync the segment. Raises: StoreFailed."""
        self._file.sync()

    def close(self) -> None:
        """Close the file. Raises: StoreFailed."""
        self._file.close()
