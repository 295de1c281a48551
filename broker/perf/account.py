"""Records when a run without messages began and what the broker and the generator used until its result."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence

from broker.perf.faults import Fault
from broker.perf.histogram import Histogram
from broker.perf.machine import MachineFacts
from broker.perf.outcome import BUSY_SHARE, shown_options, started, used
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_tree import ProcessTree, TreeUsage
from broker.perf.result import BrokerFacts, Figure, Generator, Result


class Account:
    """The start of a run: its clocks and the resource usage at that time."""

    def __init__(self, options: Namespace) -> None:
        """Connect to the broker and read the usage of its process.

        Raises: Fault, OSError for a broker that refuses a first connection, or a process that does not exist.
        """
        self.address: Address = options.uri
        self._options = options
        first = PeerConnection(self.address, 1)
        self._product = first.product
        first.close()
        self._tree = ProcessTree(options.pid) if options.pid else None
        self._outset = self.usage()
        if self._tree is not None:
            if self._outset is None or not self._outset.rss_bytes:
                raise Fault(f"no process {options.pid} on this machine")
            self._tree.reset_peak()
        self._watch = Stopwatch()

    def usage(self) -> TreeUsage | None:
        """Return what the broker has used so far, None if its process is unknown."""
        return self._tree.usage() if self._tree else None

    def result(self, figures: Mapping[str, Figure | None], failures: Sequence[str], busy_share: float) -> Result:
        """Return the result; a figure of None was not measured."""
        seconds = self._watch.seconds()
        return Result(
            scenario=self._options.scenario,
            arguments=tuple(getattr(self._options, "words", ())),
            started=started(seconds),
            broker=BrokerFacts(self._product, self.address.host, self.address.port),
            options=shown_options(self._options),
            seconds=seconds,
            generator=Generator(self._watch.cpu_s(), min(1.0, busy_share), None, busy_share > BUSY_SHARE),
            process=used(self._outset, self.usage(), 0),
            machine=MachineFacts.here(),
            figures={name: figure for name, figure in figures.items() if figure is not None},
            failures=tuple(failures),
        )


class Stopwatch:
    """Measures the duration of a stage and the CPU time that this process spends in it."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Return the elapsed time; never 0."""
        return max(1e-9, time.monotonic() - self._began_s)

    def cpu_s(self) -> float:
        """Return the CPU time that this process used."""
        return time.process_time() - self._cpu_s

    def busy_share(self) -> float:
        """Return the CPU time of this process as a share of the elapsed time."""
        return self.cpu_s() / self.seconds()


def spent_us(before: TreeUsage | None, after: TreeUsage | None, count: int) -> Figure | None:
    """Return the broker's CPU time for each of `count`, None if its process is unknown."""
    if before is None or after is None or not count:
        return None
    return Figure((after.cpu_s - before.cpu_s) / count * 1e6, "us")


def grown(before: TreeUsage | None, after: TreeUsage | None, count: int) -> Figure | None:
    """Return the growth of the broker's memory for each of `count`, None if its process is unknown."""
    if before is None or after is None or not count:
        return None
    return Figure(max(0, after.rss_bytes - before.rss_bytes) / count, "bytes")


def times_us(name: str, histogram: Histogram) -> dict[str, Figure | None]:
    """Return the median and the 99th percentile as figures; empty if the histogram is empty."""
    if not histogram.count:
        return {}
    p50, p99 = histogram.percentiles((50, 99))
    return {f"{name}_p50": Figure(p50 / 1e3, "us"), f"{name}_p99": Figure(p99 / 1e3, "us")}
