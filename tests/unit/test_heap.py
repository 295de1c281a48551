"""The heap of the C library: freed memory serves the next messages, and later goes back to the kernel in slices."""

import os
import platform
import subprocess
import sys

import pytest

from broker.free_pools import POOL_BYTES, STEP_CALLS
from broker.heap import SLICE_BYTES, _clean_files

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")


BODIES = """
import resource
from broker.heap import keep_freed_memory
assert keep_freed_memory()
def run():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size_bytes, count in ((200 << 10, 4), (1 << 20, 4), (16 << 20, 1)):
        for _ in range(20):
            held = [bytes([1]) * size_bytes for _ in range(count)]
            held.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
run()
print(run())
"""


def test_large_bodies_do_not_cost_a_page_fault_per_page() -> None:
    """Bodies that are freed and allocated again use memory that the kernel has already cleared."""
    assert _run(BODIES)[0] < 2000  # of 106,000 pages


# Exact, and without the pages of files: the kernel maps up to 2 MiB of code around the page that a process runs into.
ANONYMOUS = """
from pathlib import Path
def anonymous_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
"""

HASHES = """
from threading import Thread
from broker.core.auth.password import argon2_hash
from broker.heap import keep_freed_memory
assert keep_freed_memory()
before_bytes = anonymous_bytes()
for _ in range(2):
    thread = Thread(target=argon2_hash, args=(b"secret", bytes(16)))
    thread.start()
    thread.join()
argon2_hash(b"secret", bytes(16))
print(anonymous_bytes() - before_bytes)
"""


def test_the_memory_of_a_password_hash_is_not_kept() -> None:
    """The kernel gets the memory of a hash back, whichever thread computed it."""
    assert _run(ANONYMOUS + HASHES)[0] < 4 << 20  # of 19 MiB for each thread that keeps it


RELEASE = """
import asyncio
from broker.heap import INTERVAL_S, Heap, keep_freed_memory
assert keep_freed_memory()

class Steps:  # runs on the loop what it is given, and notes what each step has returned to the kernel

    def __init__(self, loop):
        self.loop, self.returned, self.done = loop, [], asyncio.Event()

    def call_later(self, delay_s, call, *arguments):
        if delay_s == INTERVAL_S:
            self.done.set()
        return self.loop.call_later(delay_s, self.run, lambda: call(*arguments))

    def run(self, call):
        before = anonymous_bytes()
        call()
        self.returned.append(before - anonymous_bytes())

async def main():
    work = [0]
    steps = Steps(asyncio.get_running_loop())
    heap = Heap(steps, lambda: work[0])
    heap.start()
    before = anonymous_bytes()
    held = [bytes([1]) * 10_000 for _ in range(10_000)]
    kept = held[::500]
    held.clear()
    full = anonymous_bytes()
    steps.run(heap.check)  # nothing has worked
    work[0] += 1
    steps.done.clear()
    steps.run(heap.check)
    await steps.done.wait()
    intact = sum(body == bytes([1]) * 10_000 for body in kept)
    left = anonymous_bytes() - before
    heap.close()
    print(full - before, steps.returned[0], left, max(steps.returned), intact)

asyncio.run(main())
"""


def test_freed_memory_goes_back_in_slices() -> None:
    """After bodies of 100 MB were freed, the kernel gets their memory, in slices; those between them are intact."""
    freed_bytes, unasked_bytes, left_bytes, largest_bytes, intact = _run(ANONYMOUS + RELEASE)
    assert freed_bytes > 90_000_000
    assert unasked_bytes < SLICE_BYTES
    assert left_bytes < 8_000_000
    assert largest_bytes < 2 * SLICE_BYTES
    assert intact == 20


POOLS = """
from broker.free_pools import FreePools
from broker.heap import _glibc
pools = FreePools(_glibc())
before = anonymous_bytes()
objects = [(number, -number) for number in range(400_000)]
full = anonymous_bytes()
kept = objects[::10_000]  # at least one in each arena
del objects
pinned = anonymous_bytes()
steps = sum(1 for _ in pools.take())
taken, left = len(pools), anonymous_bytes()
for _ in pools.give_back():
    steps += 1
given_back = len(pools)
objects = [(number, -number) for number in range(400_000)]
intact = sum(item == (10_000 * place, -10_000 * place) for place, item in enumerate(kept))
print(full - before, pinned - before, left - before, anonymous_bytes() - before, taken, steps, given_back, intact)
"""


def test_free_pools_go_back_although_objects_keep_their_arenas() -> None:
    """Most of the memory between 40 objects is returned, in slices, and serves again when the pools are given back."""
    full_bytes, pinned_bytes, left_bytes, again_bytes, taken, steps, given_back, intact = _run(ANONYMOUS + POOLS)
    assert pinned_bytes > full_bytes / 2
    assert left_bytes < pinned_bytes / 2
    assert again_bytes < full_bytes + (2 << 20)
    assert taken * POOL_BYTES > full_bytes / 2
    assert steps >= 2 * 31 * taken // STEP_CALLS
    assert given_back == 0
    assert intact == 40


AGAIN = """
from broker.free_pools import FreePools
from broker.heap import _glibc
pools = FreePools(_glibc())
calls = [0]
def counted(call):
    def count(argument):
        calls[-1] += 1
        return call(argument)
    return count
pools._malloc, pools._free = counted(pools._malloc), counted(pools._free)
sizes, taken, kept = (24, 24, 470, 470, 100, 470, 24), [], []
for size in sizes:
    objects = [number.to_bytes(size) for number in range(20_000_000 // (size + 33))]
    kept.append(objects[::5000])
    del objects
    if size == 470:
        stray = [bytes(470) for _ in range(4000)]
        del stray[::2]  # pools that are half used
    for _ in pools.take():
        calls.append(0)
    taken.append(len(pools))
    calls.append(0)
    for _ in pools.give_back():
        calls.append(0)
intact = sum(list(map(int.from_bytes, some)) == list(range(0, 5000 * len(some), 5000)) for some in kept)
print(min(taken), max(taken), max(calls), intact)
"""


def test_free_pools_are_taken_after_every_load() -> None:
    """It does not matter which blocks the pools had before, nor that those were of the same size as the new ones; a
    step has a bounded number of calls.
    """
    least, most, calls, intact = _run(AGAIN)
    assert least > 0.7 * most
    assert most * POOL_BYTES > 15_000_000
    assert calls <= STEP_CALLS
    assert intact == 7


LOADS = """
import asyncio, sys
import broker.heap as heap_module
from broker.heap import PAUSE_S, QUIET_TURNS, Heap, keep_freed_memory
assert keep_freed_memory()

async def run():
    turns, left = [0], []
    heap_module.INTERVAL_S = 1000  # this program checks
    names = [f"name_{number}" for number in range(100)]
    for name in names:
        getattr(names, name, None)
    references = list(map(sys.getrefcount, names))
    heap = Heap(asyncio.get_running_loop(), lambda: turns[0])
    heap.start()
    before = anonymous_bytes()
    for _ in range(3):
        objects = [number.to_bytes(64) for number in range(400_000)]
        kept = objects[::10_000]
        del objects
        turns[0] += QUIET_TURNS
        heap.check()
        while heap._pools:  # from the load before
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(0.5)
        heap.check()  # no turns: idle
        while len(heap._pools) < 1000 or anonymous_bytes() - before > 20_000_000:
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(0.5)
        left.append(anonymous_bytes() - before)
        turns[0] += 1
        taken = len(heap._pools)
        heap.check()
        await asyncio.sleep(0.5)
        heap.check()  # idle again
        await asyncio.sleep(0.5)
        assert len(heap._pools) == taken
    turns[0] += 1
    heap.check()
    await asyncio.sleep(0.5)
    objects = [number.to_bytes(64) for number in range(400_000)]  # a load in few turns
    small = objects[::10_000]
    del objects
    turns[0] += 1
    heap.check()
    while anonymous_bytes() - before > 25_000_000:
        await asyncio.sleep(PAUSE_S)
    assert len(heap._pools) > 1.5 * taken  # none was given back
    heap.close()
    print(max(left), sum(map(int.__gt__, references, map(sys.getrefcount, names))))

asyncio.run(asyncio.wait_for(run(), 30))
"""


def test_free_pools_are_taken_between_loads() -> None:
    """They are taken once when the broker is idle, and given back when it has work; the memory does not grow."""
    left_bytes, forgotten = _run(ANONYMOUS + LOADS)
    assert left_bytes < 20_000_000  # of 54 MB
    assert forgotten == 100  # names that Python's cache of types had


@pytest.mark.parametrize("allocator", ["malloc", "debug", "pymalloc_debug"])
def test_other_allocators_keep_their_memory(allocator: str) -> None:
    """Blocks that do not lie in a pool are freed again."""
    taken, intact = _run(ANONYMOUS + POOLS, PYTHONMALLOC=allocator)[4::3]
    assert (taken, intact) == (0, 40)


def _run(program: str, **environment: str) -> list[int]:
    """Return the numbers that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return [int(word) for word in done.stdout.split()]


SMAPS = """\
1000-3000 r-xp 00000000 fe:00 7          /usr/lib/libone.so
Size:                  8 kB
Anonymous:             0 kB
VmFlags: rd ex
4000-5000 r--p 00002000 fe:00 7          /usr/lib/libone.so
Anonymous:             4 kB
6000-7000 rw-p 00003000 fe:00 7          /usr/lib/libone.so
Anonymous:             0 kB
8000-9000 r--p 00000000 00:00 0          [vvar]
Anonymous:             0 kB
a000-b000 r--p 00000000 fe:00 8          /usr/share/a file
Anonymous:             0 kB
"""


def test_only_files_as_they_are_on_disk_are_unmapped() -> None:
    """Relocated, writable and anonymous memory stays mapped: the kernel could not read it again."""
    assert list(_clean_files(SMAPS.splitlines())) == [(0x1000, 0x2000), (0xA000, 0x1000)]


UNMAPPED = """
import asyncio
from broker.heap import Heap
from broker.process_memory import resident_bytes
import pydantic.types, ssl, uvloop
async def run():
    before = resident_bytes()
    heap = Heap(asyncio.get_running_loop(), lambda: 0)
    heap.start()
    after = resident_bytes()
    heap.close()
    print(before - after)
asyncio.run(run())
"""


def test_code_that_only_a_start_ran_is_unmapped() -> None:
    """The libraries that an import read are no longer resident, and the process runs on."""
    assert _run(UNMAPPED)[0] > 2 << 20


AFTER = """
import asyncio
from broker.heap import PAUSE_S, QUIET_TURNS, Heap, keep_freed_memory
from broker.process_memory import resident_bytes
assert keep_freed_memory()

async def run():
    turns, steps, held = [0], [], []
    def free():
        for number in range(3):
            steps.append(number)
            yield
        held.clear()
    heap = Heap(asyncio.get_running_loop(), lambda: turns[0], free)
    heap.start()
    before = resident_bytes()
    heap.check()  # nothing has worked
    held.extend(bytes([1]) * 10_000 for _ in range(3_000))
    turns[0] += QUIET_TURNS
    heap.check()
    assert not steps  # a load
    heap.check()  # is over
    assert steps == [0]  # a step in each turn
    while held or resident_bytes() - before > 8_000_000:
        await asyncio.sleep(PAUSE_S)
    assert steps == [0, 1, 2]
    heap.check()
    assert steps == [0, 1, 2]  # once
    heap.close()
    print(resident_bytes() - before)

asyncio.run(asyncio.wait_for(run(), 20))
"""


def test_what_can_be_computed_again_is_freed_once_after_a_load() -> None:
    """It is freed in steps when the loop has few turns, and its memory is returned at once."""
    assert _run(AFTER)[0] < 8_000_000
