"""Describes the machine that runs the generator, without its name."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts of a machine that figures depend on."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """Return the facts of this machine; `cores` counts those that this process may use."""
        return cls(
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            system=f"{platform.system()} {platform.release().partition('-')[0]}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
        )


def _cpu() -> str:
    """Return the processor's name as the kernel reports it, or else its architecture."""
    try:
        lines = _CPU_FILE.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
