"""The direct writer: writes large batches to the disk past the page cache.

A write through the page cache allocates a page for every 4 KiB, copies into it, and writes it back later. That takes
several times the CPU time of a copy into aligned memory that the disk reads from (`O_DIRECT`). The disk takes whole
pages only: what begins or ends within a page goes through the page cache, as small batches do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.store.files import PAGE_BYTES, File, aligned_memory

__all__ = ["DirectWriter"]

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
