"""Measures a broker's use of CPU time, memory, disk, reads and writes between two times."""

from __future__ import annotations

from pathlib import Path

from bench.brokers import Broker
from bench.run import Figures
from broker.perf.machine import ProcessTree, TreeUsage


class Meter:
    """Measures the broker's processes from `start` to `stop`; no figures if we may not inspect them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._before: TreeUsage | None = None
        self._calls_before = (0, 0)

    def start(self) -> None:
        """Take the first reading, and reset the peak of memory."""
        processes = self._broker.processes
        if processes:
            processes.reset_peak()
            self._before = processes.usage()
            self._calls_before = _calls(processes)

    def stop(self, units: int) -> Figures:
        """Take the second reading and return the cost of each of `units`, such as messages.

        Units: `reads` and `writes` are read(2), write(2) and their variants, of sockets and files; the kernel's
        counters exclude recv, send, epoll and fdatasync.
        """
        processes, before = self._broker.processes, self._before
        if not processes or not before:
            return {}
        after = processes.usage()
        reads, writes = (now - then for now, then in zip(_calls(processes), self._calls_before, strict=True))
        return {
            "cpu_s": after.cpu_s - before.cpu_s,
            "cpu_us": (after.cpu_s - before.cpu_s) / units * 1e6,
            "rss_bytes": after.rss_bytes,
            "rss_growth_bytes": after.rss_bytes - before.rss_bytes,
            "peak_rss_bytes": after.peak_rss_bytes,
            "disk_bytes": self._broker.disk_bytes(),
            "reads": reads / units,
            "writes": writes / units,
        }


def threads_s(processes: ProcessTree) -> float:
    """Return the CPU time of the living threads of the first process, in nanoseconds where the kernel keeps it."""
    found = 0.0
    for path in Path(f"/proc/{processes.root}/task").glob("*/schedstat"):
        try:
            found += int(path.read_text().split()[0]) / 1e9
        except (OSError, IndexError):
            continue  # the thread has ended meanwhile
    return found


def _calls(processes: ProcessTree) -> tuple[int, int]:
    """Return how many reads and writes the processes have made, as far as the kernel provides them."""
    reads = writes = 0
    for pid in processes.pids():
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:
            continue  # ended meanwhile, or belongs to another user
        counts = dict(line.split(": ") for line in lines)
        reads += int(counts["syscr"])
        writes += int(counts["syscw"])
    return reads, writes
