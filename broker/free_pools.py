"""Free pools of Python's allocator: return their memory to the kernel although a few objects keep their arenas.

Python returns an arena of 1 MiB only when all of its 64 pools are free. After a load, a handful of small objects that
were created during it keep dozens of arenas.
Source: CPython's Objects/obmalloc.c; madvise(2), mincore(2).
"""

from __future__ import annotations

import ctypes
import resource
from array import array
from collections.abc import Iterator
from typing import Any, Final

from broker.process_memory import resident_bytes

POOL_BYTES: Final = 16 << 10
ARENA_BYTES: Final = 1 << 20
HEADER_BYTES: Final = 48  # of a pool, before its first block
BLOCK_BYTES: Final = 512  # the largest block of a pool
BLOCKS: Final = (POOL_BYTES - HEADER_BYTES) // BLOCK_BYTES
SLICE_POOLS: Final = 64  # taken in one step: 1 ms
STRAY_MAX: Final = 4096  # blocks outside whole free pools, after which another allocator is assumed

_MADV_DONTNEED: Final = 4
_PAGE_BYTES: Final = resource.getpagesize()


class FreePools:
    """Take free pools from Python's allocator, so that their pages can be returned to the kernel, and give them back.

    A pool is taken by allocating each of its blocks. All its pages but the first, which has the header, can then be
    returned, because nobody else uses them. The allocator hands out the pools of full arenas first, and allocates an
    arena only when no pool is free: that arena ends the search.
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
        """Take all free pools and return their pages, in steps of SLICE_POOLS."""
        if _PAGE_BYTES >= POOL_BYTES:
            return
        pools_max = len(self._taken) + resident_bytes() // POOL_BYTES
        stray = array("Q")
        while len(stray) < STRAY_MAX and len(self._taken) < pools_max:
            first = self._malloc(BLOCK_BYTES)
            if first % POOL_BYTES != HEADER_BYTES:
                stray.append(first)
            elif self._is_in_new_arena(first - HEADER_BYTES):
                stray.append(first)
                break
            elif self._take_rest(first, stray) and len(self._taken) % SLICE_POOLS == 0:
                yield
        for block in stray:
            self._free(block)

    def give_back(self) -> Iterator[None]:
        """Give all pools back to the allocator, in steps of SLICE_POOLS."""
        while self._taken:
            for block in _blocks(self._taken.pop()):
                self._free(block)
            if len(self._taken) % SLICE_POOLS == 0:
                yield

    def _take_rest(self, first: int, stray: array[int]) -> bool:
        """Take the pool of which `first` is the first block; return whether its other blocks were free."""
        pool = first - HEADER_BYTES
        blocks = [first, *[self._malloc(BLOCK_BYTES) for _ in range(BLOCKS - 1)]]
        if sorted(blocks) != list(_blocks(pool)):
            stray.extend(blocks)
            return False
        self._libc.madvise(pool + _PAGE_BYTES, POOL_BYTES - _PAGE_BYTES, _MADV_DONTNEED)
        self._taken.append(pool)
        return True

    def _is_in_new_arena(self, pool: int) -> bool:
        """Return whether no page behind a pool's first is resident, as far as the arena would reach if it were new."""
        size_bytes = ARENA_BYTES - POOL_BYTES  # without the pool that an arena off the grid of pools lacks
        pages = ctypes.create_string_buffer(size_bytes // _PAGE_BYTES)
        return self._libc.mincore(pool, size_bytes, pages) == 0 and not pages.raw[1:].strip(b"\0")


def _blocks(pool: int) -> range:
    """Return the addresses of a pool's blocks."""
    return range(pool + HEADER_BYTES, pool + HEADER_BYTES + BLOCKS * BLOCK_BYTES, BLOCK_BYTES)
