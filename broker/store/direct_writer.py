"""The direct writer: writes large batches to the disk past the page cache.

A write through the page cache allocates a page for every 4 KiB, copies into it, and writes it back later. That takes
several times the CPU time of a copy into aligned memory that the disk reads from (`O_DIRECT`). The disk takes whole
pages only: a batch that begins within a page writes what stands in front of it once more, as the page cache would, and
zeros follow its end.
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

    def write(self, file: File, offset: int, head: bytes, blocks: Sequence[bytes]) -> bytes:
        """Write blocks one behind another from `offset`, and zeros up to the next page. Raises: StoreFailed.

        Shapes: `head` is what the page of `offset` holds in front of it. Returns the head of what follows the blocks.
        Cost: one copy, and a call per BUFFER_BYTES. A sync has to follow, as for any write.
        """
        buffer = self._buffer
        at = len(head)
        page = offset - at
        buffer[:at] = head
        for block in blocks:
            size = len(block)
            done = 0
            while done < size:
                part = min(size - done, BUFFER_BYTES - at)
                buffer[at : at + part] = block if part == size else memoryview(block)[done : done + part]
                done += part
                at += part
                if at == BUFFER_BYTES:
                    file.write_pages_at(page, buffer[:at])
                    page += at
                    at = 0
        if not at:
            return b""
        last = at - at % PAGE_BYTES
        stop = at + -at % PAGE_BYTES
        buffer[at:stop] = bytes(stop - at)
        file.write_pages_at(page, buffer[:stop])
        return bytes(buffer[last:at])
