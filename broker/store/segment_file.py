"""The segment that the log writes to: records, and zeros ahead of them.

A sync of a file that has grown also writes the journal of the file system, which takes about as long as the records. So
small batches fill the file with zeros ahead of them, in steps of its own length, and the next ones overwrite these.
A reader takes zeros up to the end of a segment for its end. Only the last segment has any: zeros end where the segment
is full, and the log begins the next one behind a record that reaches that far.

Large batches of large bodies bypass the page cache, where records cost several times as much: see `DirectWriter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.store.batch import SegmentRun
from broker.store.files import PAGE_BYTES, File, aligned_memory
from broker.store.segment import AHEAD_MAX_BYTES

__all__ = ["DirectWriter", "SegmentFile"]

BUFFER_BYTES: Final = 1 << 20


class DirectWriter:
    """An aligned buffer, and how blocks of any size pass through it.

    Invariant: the buffer begins at a page of the file.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = aligned_memory(BUFFER_BYTES)

    def write(self, file: File, offset: int, blocks: Sequence[bytes]) -> int:
        """Write blocks one behind another from `offset`, and return their end. Raises: StoreFailed.

        Cost: one copy, and a call per BUFFER_BYTES. A sync has to follow, as for any write.
        """
        buffer = self._buffer
        start: int = offset % PAGE_BYTES
        at: int = start
        page = offset - start
        for block in blocks:
            size = len(block)
            done = 0
            while done < size:
                part = min(size - done, BUFFER_BYTES - at)
                buffer[at : at + part] = block if part == size else memoryview(block)[done : done + part]
                done += part
                at += part
                if at == BUFFER_BYTES:
                    self._flush(file, page, start, at)
                    page += at
                    start = at = 0
        self._flush(file, page, start, at)
        return page + at

    def _flush(self, file: File, page: int, start: int, end: int) -> None:
        """Write the buffer from `start` to `end`; it begins at the offset `page` of the file."""
        buffer = self._buffer
        first = min(start + -start % PAGE_BYTES, end)
        last = max(end - end % PAGE_BYTES, first)
        if start < first:
            file.write_at(page + start, bytes(buffer[start:first]))
        if first < last:
            file.write_pages_at(page + first, buffer[first:last])
        if last < end:
            file.write_at(page + last, bytes(buffer[last:end]))


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
