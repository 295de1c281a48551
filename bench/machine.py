"""Describes the machine of a benchmark, without its name, and how steady its speed was."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

from broker.doctor.folder_checks import file_system, sync_times_s
from broker.perf.machine import MachineFacts

_PROBE_STEPS = 200_000


def describe(folder: Path) -> dict[str, Any]:
    """Return cores, memory, kernel, Python, and the file system under `folder` with the time of one fdatasync."""
    here = MachineFacts.here()
    return {
        "cpu": here.cpu,
        "cores": here.cores,
        "memory_gib": round(here.memory_bytes / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "file_system": file_system(folder) or "unknown",
        "fdatasync_us": round(fdatasync_us(folder)),
        "load": round(os.getloadavg()[0], 1),
    }


def fdatasync_us(folder: Path) -> float:
    """Return the median time of appending 4 KiB and syncing it, the physical limit of an unbatched confirm."""
    return median(sync_times_s(folder)) * 1e6


def step_ns() -> float:
    """Return the CPU time of one step of a fixed Python loop; its variation is that of the shared machine's speed."""
    total = 0
    begun = time.process_time_ns()
    for step in range(_PROBE_STEPS):
        total += step
    return (time.process_time_ns() - begun) / _PROBE_STEPS
