"""Free pools of Python's allocator: return their memory to the kernel although a few objects keep their arenas.

Python returns an arena of 1 MiB only when all of its 64 pools are free. After a load, a handful of small objects that
were created during it keep dozens of arenas.
Source: CPython's Objects/obmalloc.c; madvise(2), proc_pid_maps(5).
"""

from __future__ import annotations

import ctypes
import resource
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

POOL_BYTES: Final = 16 << 10
HEADER_BYTES: Final = 48  # of a pool, before its first block
BLOCK_BYTES: Final = 512  # the largest block of a pool
BLOCKS: Final = (POOL_BYTES - HEADER_BYTES) // BLOCK_BYTES
STEP_CALLS: Final = 1000  # of the allocator in one step: half a millisecond to a millisecond
STRAY_MAX: Final = 1 << 16  # blocks outside whole free pools, 32 MiB of them

_MADV_DONTNEED: Final = 4
_PAGE_BYTES: Final = resource.getpagesize()
_MAPS: Final = Path("/proc/self/maps")


class FreePools:
    """Take free pools from Python's allocator, so that their pages can be returned to the kernel, and give them back.

    A pool is taken by allocating each of its blocks. All its pages but the first, which has the header, can then be
    returned, because nobody else uses them. The allocator hands out the pools of full arenas first, and allocates an
    arena only when no pool is free: the first block of that arena ends the search.
    Shapes: `_taken` has the address of each taken pool.
    Cost: 13 µs per pool to take it, 10 µs to give it back. A taken pool keeps 4 KiB, and its arena.
    Invariant: a page is returned only if allocated blocks and the unusable end of their pool cover it. With another
        allocator (PYTHONMALLOC), blocks do not lie as in a pool, and none is taken.
    """

    def __init__(self, libc: Any) -> None:
        """Take the functions of the C library, whose argument types are declared."""
        self._libc = libc
        self._malloc = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)(("PyObject_Malloc", ctypes.pythonapi))
        self._free = ctypes.PYFUNCTYPE(None, ctypes.c_size_t)(("PyObject_Free", ctypes.pythonapi))
        self._taken = array("Q")

    def __len__(self) -> int:
        return len(self._taken)

    def take(self) -> Iterator[None]:
        """Take all free pools and return their pages, in steps."""
        if _PAGE_BYTES >= POOL_BYTES:
            return
        starts, ends = _mappings()
        stray = array("Q")
        run = array("Q")  # blocks of one pool, in any order: the allocator uses up a pool before the next one
        yield
        while len(stray) < STRAY_MAX:
            for _ in range(STEP_CALLS):
                block = self._malloc(BLOCK_BYTES)
                if run and block // POOL_BYTES == run[0] // POOL_BYTES:
                    run.append(block)
                    if len(run) == BLOCKS and self._keep(run):
                        run = array("Q")
                    continue
                stray += run
                run = array("Q", (block,))
                place = bisect_right(starts, block) - 1
                if (block - HEADER_BYTES) % BLOCK_BYTES or place < 0 or block >= ends[place]:
                    return (yield from self._end(stray + run))
            yield
        yield from self._end(stray + run)

    def give_back(self) -> Iterator[None]:
        """Give all pools back to the allocator, in steps."""
        while self._taken:
            for _ in range(min(len(self._taken), STEP_CALLS // BLOCKS)):
                for block in _blocks(self._taken.pop()):
                    self._free(block)
            yield

    def _keep(self, run: array[int]) -> bool:
        """Return the pages of a pool if `run` has all its blocks, and return whether it has."""
        pool = run[0] // POOL_BYTES * POOL_BYTES
        if sorted(run) != list(_blocks(pool)):
            return False
        self._libc.madvise(pool + _PAGE_BYTES, POOL_BYTES - _PAGE_BYTES, _MADV_DONTNEED)
        self._taken.append(pool)
        return True

    def _end(self, stray: array[int]) -> Iterator[None]:
        """Free the blocks outside whole free pools, in steps."""
        for place, block in enumerate(stray):
            if place % STEP_CALLS == 0:
                yield
            self._free(block)


def _blocks(pool: int) -> range:
    """Return the addresses of a pool's blocks."""
    return range(pool + HEADER_BYTES, pool + HEADER_BYTES + BLOCKS * BLOCK_BYTES, BLOCK_BYTES)


def _mappings() -> tuple[list[int], list[int]]:
    """Return the start and the end of each mapping of this process, in ascending order. Cost: 2 ms."""
    starts: list[int] = []
    ends: list[int] = []
    with suppress(OSError), _MAPS.open() as lines:
        for line in lines:
            start, end = line.split(" ", 1)[0].split("-")
            starts.append(int(start, 16))
            ends.append(int(end, 16))
    return starts, ends
