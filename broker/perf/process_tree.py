"""Reads from /proc what a broker's processes have used: CPU time, resident memory and its peak."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RESET_PEAK = "5"  # proc(5), clear_refs


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """The resources that a process tree has used so far."""

    cpu_s: float
    rss_bytes: int
    peak_rss_bytes: int


class ProcessTree:
    """A broker's process and all its descendants."""

    def __init__(self, root: int) -> None:
        self.root = root

    def pids(self) -> list[int]:
        """Return the pids of the root and its living descendants."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                stat = _stat(int(entry.name))
                if stat:
                    children.setdefault(int(stat[1]), []).append(int(entry.name))
        found, todo = [], [self.root]
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo += children.get(pid, [])
        return found

    def usage(self) -> TreeUsage:
        """Return CPU seconds (user and system, with those of ended children), resident memory and its peak."""
        ticks = rss = peak = 0
        for pid in self.pids():
            stat = _stat(pid)
            if stat:
                ticks += sum(int(stat[at]) for at in (11, 12, 13, 14))
            memory = _memory(pid)
            rss += memory.get("VmRSS", 0)
            peak += memory.get("VmHWM", 0)
        return TreeUsage(ticks / _TICKS_PER_S, rss, peak)

    def reset_peak(self) -> None:
        """Reset the peak of resident memory, if the kernel permits it."""
        for pid in self.pids():
            try:
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
            except OSError:
                return  # another user's process: the peak then covers its whole life and is never too low


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; utime, stime, cutime, cstime are 11 to 14."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _memory(pid: int) -> dict[str, int]:
    """Return the kB values of /proc/PID/status, in bytes."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
