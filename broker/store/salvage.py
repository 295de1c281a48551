"""Salvage: read around sectors that the disk cannot read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.store.damage import StoreFailed

__all__ = ["read_around"]

SECTOR_BYTES: Final = 4096  # of current disks, and the least that the page cache reads
FAILURES_MAX: Final = 256  # each takes a disk seconds, so a dead disk is not read sector by sector


def read_around(read: Callable[[int, int], bytes], offset: int, size: int) -> tuple[bytes, str]:
    """Return `size` bytes from `offset`, fewer at the end of the file, and why some of them could not be read.

    Shapes: read(offset, size) raises StoreFailed. Unreadable bytes become zeros; without any, the reason is empty.
    Cost: one call without bad sectors, else a few for each.
    """
    pieces: list[bytes] = []
    reason = ""
    failures = 0
    left = [(offset, size)]
    while left:
        at, length = left.pop()
        middle = (at + length // 2) // SECTOR_BYTES * SECTOR_BYTES
        middle = middle if middle > at else (at // SECTOR_BYTES + 1) * SECTOR_BYTES
        try:
            block = read(at, length)
        except StoreFailed as error:
            failures += 1
            if middle < at + length and failures < FAILURES_MAX:
                left += [(middle, at + length - middle), (at, middle - at)]
                continue
            reason = error.reason
            block = bytes(length)
        pieces.append(block)
        if len(block) < length:
            break
    return b"".join(pieces), reason
