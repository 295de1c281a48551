"""The machine's memory figures: the limit of the process's control group and of its parents."""

import os
import resource
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
