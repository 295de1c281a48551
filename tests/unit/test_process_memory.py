"""The machine's memory figures: the limit of the process's control group and of its parents."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from broker.process_memory import memory_limit_bytes, resident_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/", {"memory.max": "67108864"}, 67108864),  # a container with a namespace of its own
        ("0::/docker/abc", {"memory.max": "67108864"}, 67108864),  # a container that sees only its own group
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "33554432", "memory.max": "99999999"}, 33554432),
        ("0::/a/b", {"a/b/memory.max": "1048576", "a/memory.max": "33554432"}, 1048576),
        ("0::/a", {"a/memory.max": "max"}, MACHINE),
        ("0::/a", {"a/memory.max": str(MACHINE * 2)}, MACHINE),
        ("4:memory:/docker/abc\n0::/", {"memory/docker/abc/memory.limit_in_bytes": "5242880"}, 5242880),
        ("4:cpu,memory:/docker/abc", {"memory/memory.limit_in_bytes": "5242880"}, 5242880),
        ("4:memory:/x", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),  # version 1's "no limit"
        ("0::/a:b", {"a:b/memory.max": "4096"}, 4096),
        ("", {}, MACHINE),
        ("nonsense", {"memory.max": "8192"}, 8192),
    ],
)
def test_the_least_limit_of_the_groups_counts(tmp_path: Path, group: str, files: dict[str, str], limit: int) -> None:
    """The least limit of the group and its parents applies, in both versions of control groups, else the machine's."""
    (tmp_path / "cgroup").write_text(group + "\n" if group else "")
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert memory_limit_bytes(tmp_path / "cgroup", tmp_path / "fs") == limit


def test_where_there_are_no_control_groups_it_is_the_machines_memory(tmp_path: Path) -> None:
    """Systems other than Linux have no control groups."""
    assert memory_limit_bytes(tmp_path / "nothing", tmp_path / "nothing") == MACHINE


def test_this_process_is_within_its_limit() -> None:
    """The real files give a resident size above zero and below the limit."""
    assert 0 < resident_bytes() < memory_limit_bytes() <= MACHINE


BODIES = """
import resource
from broker.process_memory import keep_freed_memory
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_large_bodies_do_not_cost_a_page_fault_per_page() -> None:
    """Bodies that are freed and allocated again use memory that the kernel has already cleared."""
    done = subprocess.run([sys.executable, "-c", BODIES], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 2000  # of 106,000 pages


HASHES = """
from threading import Thread
from broker.core.auth.password import argon2_hash
from broker.process_memory import keep_freed_memory, resident_bytes
assert keep_freed_memory()
before_bytes = resident_bytes()
for _ in range(2):
    thread = Thread(target=argon2_hash, args=(b"secret", bytes(16)))
    thread.start()
    thread.join()
argon2_hash(b"secret", bytes(16))
print(resident_bytes() - before_bytes)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_the_memory_of_a_password_hash_is_not_kept() -> None:
    """The kernel gets the memory of a hash back, whichever thread computed it."""
    done = subprocess.run([sys.executable, "-c", HASHES], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 4 << 20  # of 19 MiB for each thread that keeps it
