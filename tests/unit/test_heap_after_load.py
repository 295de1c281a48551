"""When a load is over, the broker frees what it can compute again, in steps, before free memory goes back."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")

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
    done = subprocess.run([sys.executable, "-c", AFTER], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8_000_000
