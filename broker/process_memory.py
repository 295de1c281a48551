"""Memory and descriptors of this process, as the operating system reports them."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_STATM_BYTES: Final = 256  # seven numbers
_PAGE_BYTES: Final = resource.getpagesize()
_CGROUPS: Final = Path("/proc/self/cgroup")
_MOUNTED: Final = Path("/sys/fs/cgroup")


def resident_bytes() -> int:
    """Return the resident set size of this process; where the system does not report it, the peak."""
    try:
        descriptor = os.open(_STATM, os.O_RDONLY)  # a file object makes twice as many system calls
        try:
            return int(os.read(descriptor, _STATM_BYTES).split()[1]) * _PAGE_BYTES
        finally:
            os.close(descriptor)
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def open_descriptors() -> int | None:
    """Return the number of open descriptors, or None if the system does not report it."""
    try:
        return sum(1 for _entry in Path("/dev/fd").iterdir()) - 1  # without the descriptor of the folder itself
    except OSError:
        return None


def memory_limit_bytes(cgroups: Path = _CGROUPS, mounted: Path = _MOUNTED) -> int:
    """Return the memory limit of this process: the lowest limit of its control groups, at most the machine's memory.

    Source: cgroups(7); /proc/self/cgroup names the group, which in a container is often the root of the mount.
    """
    least = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    for path in _limit_files(cgroups, mounted):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" means no limit
            least = min(least, int(text))
    return least


def _limit_files(cgroups: Path, mounted: Path) -> Iterator[Path]:
    """Yield the files with the memory limits of this process's control group and of all groups that contain it."""
    groups = {"": "/", "memory": "/"}  # paths by controller; "" is cgroup version 2, with one tree for all controllers
    try:
        for line in cgroups.read_text().splitlines():
            _number, controllers, path = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), path))
    except (OSError, ValueError):  # not Linux, or an unknown layout
        pass
    for controller, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        group = PurePosixPath(groups[controller].lstrip("/"))
        for ancestor in (group, *group.parents):
            yield mounted / controller / ancestor / file
