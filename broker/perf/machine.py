"""The machine that runs the generator: its facts, its limit of open files, and the resources that a broker uses."""

from __future__ import annotations

import os
import platform
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from broker.perf.faults import Fault

_CPU_FILE: Final = Path("/proc/cpuinfo")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_RESET_PEAK: Final = "5"  # proc(5), clear_refs
_SPARE_FILES: Final = 32  # for the program's own files, pipes and selector


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts about a machine that figures depend on, without its name."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """Return the facts of this machine; `cores` are those that this process may use."""
        return cls(
            cpu=_cpu(),
            cores=cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            system=f"{platform.system()} {platform.release().partition('-')[0]}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
        )


def _cpu() -> str:
    """Return the processor's name as the kernel reports it, or else its architecture."""
    lines = _read(_CPU_FILE).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()


def raise_file_limit(sockets: int) -> None:
    """Raise the soft limit of open files so that `sockets` fit, at most to the hard limit.

    Raises: Fault if the hard limit is too low or the system refuses; the text names the limit that would suffice.
    """
    wanted = sockets + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    need = f"{sockets:,} connections need {wanted:,} open files"
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Fault(
            f"{need}, and this process may have {hard:,}: raise the hard limit (ulimit -Hn, or LimitNOFILE=), "
            "or ask for fewer"
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        raise Fault(f"{need}, and the limit is {soft:,}: {error}") from None


class Stopwatch:
    """Measure the duration of a stage and the CPU time that this process spends in it."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Return the elapsed time, never 0."""
        return max(1e-9, time.monotonic() - self._began_s)

    def cpu_s(self) -> float:
        return time.process_time() - self._cpu_s

    def busy_share(self) -> float:
        return min(1.0, self.cpu_s() / self.seconds())


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """A process tree's CPU time so far, its resident memory now, and the sum of its processes' memory peaks."""

    cpu_s: float
    rss_bytes: int
    peak_rss_bytes: int


class ProcessTree:
    """A broker's process and all its descendants, as /proc shows them."""

    def __init__(self, root: int) -> None:
        self.root = root

    def pids(self) -> list[int]:
        """Return the pids of the root and its living descendants."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (stat := _stat(int(entry.name))):
                children.setdefault(int(stat[1]), []).append(int(entry.name))
        found, todo = [], [self.root]
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo += children.get(pid, [])
        return found

    def usage(self) -> TreeUsage:
        """Return CPU time (user and system, with that of reaped children), resident memory and its peak."""
        ticks = rss = peak = 0
        for pid in self.pids():
            ticks += sum(int(field) for field in _stat(pid)[11:15])
            memory = _memory(pid)
            rss += memory.get("VmRSS", 0)
            peak += memory.get("VmHWM", 0)
        return TreeUsage(ticks / _TICKS_PER_S, rss, peak)

    def reset_peak(self) -> None:
        """Reset the peak of resident memory, if the kernel permits it."""
        with suppress(OSError):  # another user's process: the peak then covers its whole life, so it is never too low
            for pid in self.pids():
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; fields 11 to 14 are utime, stime, cutime and cstime."""
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def _memory(pid: int) -> dict[str, int]:
    """Return, in bytes, the values that /proc/PID/status gives in kB."""
    lines = (line.split() for line in _read(Path(f"/proc/{pid}/status")).splitlines() if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def _read(path: Path) -> str:
    """Return the text of a file of /proc, or "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
