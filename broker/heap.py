"""The C heap: keep freed memory for the next messages, and return unused memory to the kernel.

Without glibc this module does nothing.
Source: mallopt(3), malloc_trim(3), mallinfo(3), madvise(2), sbrk(2), proc_pid_smaps(5).
"""

from __future__ import annotations

import asyncio
import ctypes
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from broker.free_pools import FreePools
from broker.process_memory import memory_limit_bytes, resident_bytes

INTERVAL_S: Final = 10.0
GROWTH_BYTES: Final = 4 << 20  # below this growth since the start, nothing is returned
SLICE_BYTES: Final = 4 << 20  # returned in one callback of the loop: 0.8 ms
PAUSE_S: Final = 0.01  # between two slices
BLOCKS_BYTES: Final = (SLICE_BYTES, 256 << 10, 64 << 10)
BLOCKS_MAX: Final = 4096  # blocks allocated at once: 3 ms
CHUNKS_MAX: Final = 2000  # free chunks that malloc_trim may visit: 4 µs each

_M_TRIM_THRESHOLD: Final = -1  # <malloc.h> of glibc
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MADV_DONTNEED: Final = 4
_PAGE_BYTES: Final = resource.getpagesize()
_KEPT_BLOCK_MAX_BYTES: Final = 18 << 20  # more than a body of 16 MiB, less than the 19 MiB of a password hash
_KEPT_MAX_BYTES: Final = 64 << 20
_SMAPS: Final = Path("/proc/self/smaps")
_MAPS: Final = Path("/proc/self/maps")
QUIET_TURNS: Final = 100 * round(INTERVAL_S)  # with fewer turns of the loop between two checks, the broker is idle
_KEPT_SHARE: Final = 32  # at most 1/32 of the memory limit is kept
_clear_caches: Final = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache  # noqa: SLF001  # documented


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo: ten int fields, of which the second counts free chunks."""

    _fields_ = (("arena", ctypes.c_int), ("ordblks", ctypes.c_int), ("others", ctypes.c_int * 8))


def keep_freed_memory() -> bool:
    """Let glibc keep up to 64 MiB of freed memory for the next messages, and return whether it does.

    By default glibc returns the block of a large body to the kernel and soon requests it again. The kernel then clears
    every page at its first use, which costs a message of 200 KiB a quarter of its CPU time. Blocks of 18 MiB and more
    are still returned: such a block is the memory of a password hash, or of a very large message. All threads share one
    arena, so that each can use what another has freed. They allocate while they hold the GIL, so they rarely wait for
    each other.
    """
    kept_bytes = min(_KEPT_MAX_BYTES, memory_limit_bytes() // _KEPT_SHARE)
    values = ((_M_MMAP_THRESHOLD, _KEPT_BLOCK_MAX_BYTES), (_M_TRIM_THRESHOLD, kept_bytes), (_M_ARENA_MAX, 1))
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl has no mallopt, Windows no CDLL(None)
        return False
    return all(mallopt(name, value) for name, value in values)


class Heap:
    """Return the heap's free memory to the kernel every ten seconds, if the broker has worked and its memory has grown.

    At startup it also unmaps the code and the constants of the libraries: a third of the resident memory, most of it
    needed only at startup. Code that runs later is mapped again from the page cache.

    malloc_trim would hold glibc's lock until it has returned everything: 60 ms for 300 MB. So the free blocks are
    allocated first, and their pages are returned in slices, between which the loop serves clients. malloc_trim then
    returns the pages of smaller chunks, if there are few. Once idle after a load, the broker first frees data that it
    can compute again, unmaps the code that ran during the load, and takes Python's free pools (`FreePools`) until the
    next load.
    Cost: 20 µs if nothing is free; 0.2 ms per MB.
    Invariant: only the loop's thread allocates blocks; each is freed once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: Callable[[], int],
        free: Callable[[], Iterator[None]] = lambda: iter(()),
    ) -> None:
        """Take `turns`, which counts the turns of the loop, and `free`, which frees recomputable data in steps."""
        self._loop = loop
        self._turns = turns
        self._free = free
        self._turns_before = 0
        self._loaded = False  # whether `free` is due once the broker is idle
        self._code: list[tuple[int, int]] = []
        self._start_bytes = 0
        self._shrunk_bytes = 0  # the resident memory after the last load
        self._libc = _glibc()
        self._pools = FreePools(self._libc)
        self._blocks: list[tuple[int, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Return the memory that was freed during startup, then check every ten seconds."""
        if self._libc is not None:
            self._code = _clean_mappings()
            self._unmap(self._code)
            self._libc.malloc_trim(0)
            self._start_bytes = resident_bytes()
            self._schedule()

    def close(self) -> None:
        """Stop checking, and free the allocated blocks."""
        if self._timer is not None:
            self._timer.cancel()
        for address, _size_bytes in self._blocks:
            self._libc.free(address)
        self._blocks.clear()

    def check(self) -> None:
        """Return free memory if the broker has worked and has grown since its start; once idle, shrink first."""
        turns, size_bytes = self._turns(), resident_bytes()
        worked, self._turns_before = turns - self._turns_before, turns
        if not (worked or self._loaded) or size_bytes < self._start_bytes + GROWTH_BYTES:
            self._schedule()
        elif worked < QUIET_TURNS and self._loaded:
            self._loaded = False
            self._run(self._shrink())
        else:
            self._loaded = True
            has_load = worked >= QUIET_TURNS or size_bytes >= self._shrunk_bytes + GROWTH_BYTES
            self._run(chain(self._pools.give_back() if has_load else (), self._return()))

    def _run(self, steps: Iterator[None]) -> None:
        """Run the steps, one per callback, and then schedule the next check."""
        for _ in steps:
            self._timer = self._loop.call_later(PAUSE_S, self._run, steps)
            return
        self._schedule()

    def _shrink(self) -> Iterator[None]:
        """Free what can be computed again, unmap code and return the free memory."""
        yield from self._free()
        _clear_caches()  # each name that was composed for a getattr stays in the cache of types, and keeps its arena
        with suppress(OSError), _MAPS.open() as lines:
            self._unmap(set(self._code).intersection(_read_only_files(lines)))
        # An idle broker must not take the pools of each new arena, because it would soon need another arena.
        if not self._pools or resident_bytes() >= self._shrunk_bytes + GROWTH_BYTES:
            yield from self._pools.take()
        yield from self._return()
        self._shrunk_bytes = resident_bytes()

    def _return(self) -> Iterator[None]:
        """Return the pages of the heap's free blocks, SLICE_BYTES in each step, and then those of smaller chunks."""
        self._allocate_free_blocks()
        libc = self._libc
        left_bytes = SLICE_BYTES
        while self._blocks:
            address, size_bytes = self._blocks.pop()
            first = -(-address // _PAGE_BYTES) * _PAGE_BYTES
            libc.madvise(first, (address + size_bytes - first) // _PAGE_BYTES * _PAGE_BYTES, _MADV_DONTNEED)
            libc.free(address)
            left_bytes -= size_bytes
            if left_bytes <= 0 and self._blocks:
                left_bytes = SLICE_BYTES
                yield
        if libc.mallinfo().ordblks <= CHUNKS_MAX:
            libc.malloc_trim(0)

    def _allocate_free_blocks(self) -> None:
        """Allocate the free blocks of the heap, the largest first, until it would have to grow."""
        libc = self._libc
        end = libc.sbrk(0)
        for size_bytes in BLOCKS_BYTES:
            while len(self._blocks) < BLOCKS_MAX and (address := libc.malloc(size_bytes)):
                if address + size_bytes > end:
                    libc.free(address)
                    break
                self._blocks.append((address, size_bytes))

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self.check)

    def _unmap(self, mappings: Iterable[tuple[int, int]]) -> None:
        """Unmap the pages of read-only file mappings. Cost: a page fault for each 64 KiB used again."""
        for address, size_bytes in mappings:
            self._libc.madvise(address, size_bytes, _MADV_DONTNEED)


def _clean_mappings() -> list[tuple[int, int]]:
    """Return the clean file mappings of this process. Cost: 8 ms in a new process."""
    with suppress(OSError), _SMAPS.open() as lines:
        return list(_clean_files(lines))
    return []


def _read_only_files(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield address and size of each read-only file mapping. Cost: 2 ms, whatever the size of the process."""
    for line in maps:
        span, rights, _offset, _device, inode = line.split()[:5]
        if rights[1] == "-" and inode != "0":
            address, end = (int(word, 16) for word in span.split("-"))
            yield address, end - address


def _clean_files(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield address and size of each read-only file mapping that neither a linker nor a debugger has written to."""
    address = end = 0
    for line in smaps:
        words = line.split()
        if not words[0].endswith(":"):
            is_clean = words[1][1] == "-" and words[4] != "0"  # read-only, of a file
            address, end = (int(word, 16) for word in words[0].split("-")) if is_clean else (0, 0)
        elif end and words[:2] == ["Anonymous:", "0"]:
            yield address, end - address


def _glibc() -> Any:
    """Return the functions of glibc, or None with another C library."""
    try:
        libc = ctypes.PyDLL(None)  # its calls are short, so they keep the GIL
        word, pointer = ctypes.c_size_t, ctypes.c_void_p
        libc.mallinfo.restype, libc.mallinfo.argtypes = _MallInfo, ()
        libc.malloc_trim.argtypes = (word,)
        libc.malloc.restype, libc.malloc.argtypes = pointer, (word,)
        libc.free.restype, libc.free.argtypes = None, (pointer,)
        libc.sbrk.restype, libc.sbrk.argtypes = pointer, (ctypes.c_ssize_t,)
        libc.madvise.argtypes = (pointer, word, ctypes.c_int)
    except (AttributeError, OSError, TypeError):
        return None
    return libc
