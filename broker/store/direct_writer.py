"""Write runs of records with large bodies in large batches, bypassing the page cache.

A write through the page cache allocates a page for every 4 KiB, copies into it, and writes it back later. That takes
several times the CPU time of a copy into aligned memory that the disk reads from (`O_DIRECT`). The disk takes only
whole pages: partial pages go through the page cache, as small batches do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.store.files import PAGE_BYTES, File, aligned_memory

BUFFER_BYTES: Final = 1 << 20
DIRECT_MIN_BYTES: Final = 512 << 10  # the smallest run worth a direct write


class DirectWriter:
    """An aligned buffer, through which blocks of any size are written.

    Invariant: the buffer, which the first direct write allocates, begins at a page boundary of the file.
    """

    def __init__(self) -> None:
        self._buffer: memoryview | None = None

    def write(self, file: File, offset: int, blocks: list[bytes]) -> int:
        """Write the blocks of a run, some of them large bodies, and return where they end. Raises: StoreFailed.

        Cost: a large run is copied and written directly; a sync must follow soon.
        """
        if file.direct and sum(map(len, blocks)) >= DIRECT_MIN_BYTES:
            return self.write_direct(file, offset, blocks)
        return file.write_blocks_at(offset, blocks)

    def write_direct(self, file: File, offset: int, blocks: Sequence[bytes]) -> int:
        """Write blocks one after another from `offset`, and return where they end. Raises: StoreFailed.

        Cost: one copy, a direct write per BUFFER_BYTES, and a write for a partial page at each end.
        """
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = aligned_memory(BUFFER_BYTES)
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
                    _flush(file, buffer, page, start, at)
                    page += at
                    start = at = 0
        _flush(file, buffer, page, start, at)
        return page + at


def _flush(file: File, buffer: memoryview, page: int, start: int, end: int) -> None:
    """Write the buffer from `start` to `end`; `page` is its offset in the file."""
    first = min(start + -start % PAGE_BYTES, end)
    last = max(end - end % PAGE_BYTES, first)
    if start < first:
        file.write_at(page + start, bytes(buffer[start:first]))
    if first < last:
        file.write_pages_at(page + first, buffer[first:last])
    if last < end:
        file.write_at(page + last, bytes(buffer[last:end]))
