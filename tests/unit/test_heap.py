"""The heap of the C library: freed memory serves the next messages, and later goes back to the kernel in slices."""

import platform
import subprocess
import sys

import pytest

from broker.heap import _clean_files

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
    done = subprocess.run([sys.executable, "-c", BODIES], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 2000  # of 106,000 pages


HASHES = """
from threading import Thread
from broker.core.auth.password import argon2_hash
from broker.heap import keep_freed_memory
from broker.process_memory import resident_bytes
assert keep_freed_memory()
before_bytes = resident_bytes()
for _ in range(2):
    thread = Thread(target=argon2_hash, args=(b"secret", bytes(16)))
    thread.start()
    thread.join()
argon2_hash(b"secret", bytes(16))
print(resident_bytes() - before_bytes)
"""


def test_the_memory_of_a_password_hash_is_not_kept() -> None:
    """The kernel gets the memory of a hash back, whichever thread computed it."""
    done = subprocess.run([sys.executable, "-c", HASHES], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 4 << 20  # of 19 MiB for each thread that keeps it


RELEASE = """
import asyncio
from broker.heap import SLICE_BYTES, Heap, keep_freed_memory
from broker.process_memory import resident_bytes
assert keep_freed_memory()

async def run():
    work = [0]
    heap = Heap(asyncio.get_running_loop(), lambda: work[0])
    heap.start()
    before = resident_bytes()
    held = [bytes([1]) * 10_000 for _ in range(10_000)]
    kept = held[::500]
    held.clear()
    full = resident_bytes()
    assert full - before > 90_000_000
    heap.look()  # nothing has worked
    await asyncio.sleep(0.1)
    assert abs(resident_bytes() - full) < 1_000_000
    work[0] += 1
    drops, last = [], full
    heap.look()
    for _ in range(100):
        now = resident_bytes()
        drops.append(last - now)
        last = now
        if now - before < 8_000_000:
            break
        await asyncio.sleep(0.005)
    assert all(body == bytes([1]) * 10_000 for body in kept)
    heap.close()
    print(last - before, max(drops) / SLICE_BYTES)

asyncio.run(run())
"""


def test_freed_memory_goes_back_in_slices() -> None:
    """After bodies of 100 MB were freed, the kernel gets their memory, in slices; those between them are intact."""
    done = subprocess.run([sys.executable, "-c", RELEASE], check=True, capture_output=True, text=True)
    left_bytes, largest = done.stdout.split()
    assert int(left_bytes) < 8_000_000
    assert float(largest) < 2


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
    done = subprocess.run([sys.executable, "-c", UNMAPPED], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 2 << 20
