"""The segment that the log writes to: records, and zeros ahead of them.

A sync of a file that has grown also writes the journal of the file system, which takes about as long as the records. So
small batches fill the file with zeros ahead of them, in steps of its own length, and the next ones overwrite these.
A reader takes zeros up to the end of a segment for its end. Only the last segment has any: zeros end where the segment
is full, and the log begins the next one behind a record that reaches that far.

Large batches bypass the page cache, where records cost several times as much: see `direct_writer`.
"""

from __future__ import annotations

from typing import Final

from broker.store.batch import SegmentRun
from broker.store.direct_writer import DirectWriter
from broker.store.files import PAGE_BYTES, File
from broker.store.segment import AHEAD_MAX_BYTES

__all__ = ["SegmentFile"]

SMALL_BYTES: Final = 16 << 10  # a larger batch would be written twice, and takes longer than the journal anyway
DIRECT_MIN_BYTES: Final = 32 << 10  # a smaller batch gains little by a direct write


class SegmentFile:
    """One segment, open for writing; with ``direct`` each write is synced soon, and large ones bypass the page cache.

    Units: ``end`` is where its records end, and `limit` where the segment is full, in bytes.
    """

    __slots__ = ("_direct", "_file", "_head", "_limit", "_writer", "_zeros_end", "end")

    def __init__(self, file: File, limit: int, *, direct: bool) -> None:
        self._file = file
        self._limit = limit
        self._direct = direct
        self._writer: DirectWriter | None = None
        self._head: bytes | None = b""  # what the page of the end holds in front of it, None if it has to be read
        self._zeros_end = 0
        self.end = 0

    def write(self, run: SegmentRun) -> None:
        """Write the records of a run. Raises: StoreFailed.

        Cost: one copy of the records, none of a large body that goes through the page cache.
        """
        blocks = run.blocks()
        size_bytes = sum(map(len, blocks))
        if size_bytes >= DIRECT_MIN_BYTES and self._direct and self._file.direct:
            self._write_directly(run.offset, blocks)
        else:
            self._head = None
            if len(blocks) == 1:
                self._file.write_at(run.offset, blocks[0])
            else:
                self._file.write_blocks_at(run.offset, blocks)
        self.end = run.offset + size_bytes
        if self.end >= self._limit:
            self.cut()

    def _write_directly(self, offset: int, blocks: list[bytes]) -> None:
        """Write past the page cache, and zeros up to the end of the last page."""
        if self._writer is None:
            self._writer = DirectWriter()
        head = self._head
        if head is None:
            head_bytes = offset % PAGE_BYTES
            head = self._file.read_at(offset - head_bytes, head_bytes)
        self._head = self._writer.write(self._file, offset, head, blocks)
        end = offset + sum(map(len, blocks))
        self._zeros_end = max(self._zeros_end, end + -end % PAGE_BYTES)

    def fill_ahead(self, written_bytes: int) -> None:
        """Write zeros ahead, up to the limit, behind a small batch that used them up.

        Raises: StoreFailed, but not for a full disk: the records are written, and zeros save time only.
        """
        ahead_bytes = min(self.end, AHEAD_MAX_BYTES, self._limit - self.end)
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
