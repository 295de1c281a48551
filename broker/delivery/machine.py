"""What the machine says: how much memory this process uses and may use, and how much disk is free."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

__all__ = ["memory_limit_bytes", "resident_bytes"]

_STATM: Final = Path("/proc/self/statm")
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),  # cgroup v2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # cgroup v1
)


def resident_bytes() -> int:
    """Returns the resident set size of this process; where the system does not tell it, the largest it ever was."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def memory_limit_bytes() -> int:
    """Returns how much memory this process may use: the container's limit if it has one, else the machine's memory."""
    total = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" means no limit
            return min(total, int(text))
    return total
