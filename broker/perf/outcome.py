"""The outcome of a run, as its processes reported it, and the result that is shown of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.perf.histogram import Histogram
from broker.perf.machine import MachineFacts, TreeUsage
from broker.perf.result import BrokerFacts, Figure, Generator, Interval, Latency, ProcessUse, Result, RunTotals

_BUSY_SHARE: Final = 0.9  # of a core: above this share the generator limits the run
_NOT_OPTIONS: Final = frozenset(("run", "scenario", "uri", "words", "json", "plot", "quiet", "pid", "version"))


@dataclass(frozen=True, slots=True)
class RunTally:
    """Messages since the run began, in one process or in all."""

    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    delivered: int = 0
    acked: int = 0
    deliver_bytes: int = 0
    blocked: int = 0  # publishers that the broker blocks now

    def __add__(self, other: RunTally) -> RunTally:
        return RunTally(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: RunTally) -> RunTally:
        return RunTally(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(slots=True)
class RunOutcome:
    """Counts and times of a run.

    Units: `publish_s` and `deliver_s` run from the beginning to the last publish (or its confirm) and last delivery.
    """

    tally: RunTally = field(default_factory=RunTally)
    intervals: list[Interval] = field(default_factory=list)
    seconds: float = 0.0
    publish_s: float = 0.0
    deliver_s: float = 0.0
    due_times: Histogram = field(default_factory=Histogram)
    sent_times: Histogram = field(default_factory=Histogram)
    late_times: Histogram = field(default_factory=Histogram)
    confirm_times: Histogram = field(default_factory=Histogram)
    cpu_s: float = 0.0
    busy_share: float = 0.0
    before: TreeUsage | None = None
    after: TreeUsage | None = None
    queued_at_end: int = 0  # messages in the queues when the publishers had finished
    left_behind: int = 0  # messages not delivered when the time was over
    failures: list[str] = field(default_factory=list)
    interrupted: bool = False

    def totals(self, body_bytes: int) -> RunTotals:
        """Return the counts with their rates."""
        tally, counts = self.tally, ("published", "confirmed", "nacked", "returned", "delivered", "acked")
        return RunTotals(
            **{name: getattr(tally, name) for name in counts},
            publish_per_s=_per(tally.published, self.publish_s),
            confirm_per_s=_per(tally.confirmed, self.publish_s),
            deliver_per_s=_per(tally.delivered, self.deliver_s),
            publish_bytes=tally.published * body_bytes,
            deliver_bytes=tally.deliver_bytes,
        )

    def process(self) -> ProcessUse | None:
        """Return the usage of the broker's process, None if it was not measured."""
        return used(self.before, self.after, max(self.tally.published, self.tally.delivered))

    def result(
        self, options: Namespace, product: str, figures: Mapping[str, Figure], ceiling_per_s: float | None
    ) -> Result:
        """Return the result document of a run that moved messages."""
        undelivered = {"queued_at_end": self.queued_at_end, "left_behind": self.left_behind}
        return document(
            options,
            product,
            self.seconds,
            generator=generator(self.cpu_s, self.busy_share, ceiling_per_s),
            process=self.process(),
            figures={**figures, **{name: Figure(count, "messages") for name, count in undelivered.items() if count}},
            failures=tuple(self.failures),
            intervals=tuple(self.intervals),
            totals=self.totals(options.size),
            latency_us=Latency.of(self.due_times),
            confirm_latency_us=Latency.of(self.confirm_times),
        )


def document(options: Namespace, product: str, seconds: float, **measured: Any) -> Result:
    """Return the result document of a run that took `seconds` and ends now; `measured` are its further fields.

    The options are JSON values, without output targets and credentials.
    """
    started = datetime.fromtimestamp(datetime.now(UTC).timestamp() - seconds, UTC)
    return Result(
        scenario=options.scenario,
        arguments=tuple(getattr(options, "words", ())),
        started=started.isoformat(timespec="seconds")[:19] + "Z",
        broker=BrokerFacts(product, options.uri.host, options.uri.port),
        options={name: _plain(value) for name, value in vars(options).items() if name not in _NOT_OPTIONS},
        seconds=seconds,
        machine=MachineFacts.here(),
        **measured,
    )


def generator(cpu_s: float, busy_share: float, ceiling_per_s: float | None = None) -> Generator:
    """Return the figures of the generator itself."""
    return Generator(cpu_s, min(1.0, busy_share), ceiling_per_s, busy_share > _BUSY_SHARE)


def used(before: TreeUsage | None, after: TreeUsage | None, messages: int) -> ProcessUse | None:
    """Return the difference between two readings of a process's usage."""
    if before is None or after is None:
        return None
    cpu_s = after.cpu_s - before.cpu_s
    return ProcessUse(cpu_s, cpu_s / messages * 1e6 if messages else None, after.rss_bytes, after.peak_rss_bytes)


def cost_figures(
    before: TreeUsage | None, after: TreeUsage | None, count: int, *, cpu: str = "", memory: str = ""
) -> dict[str, Figure]:
    """Return, under these names, the broker's CPU time and growth for each of `count`; none if they are unknown."""
    if before is None or after is None or not count:
        return {}
    cpu_us, grown_bytes = (after.cpu_s - before.cpu_s) / count * 1e6, max(0, after.rss_bytes - before.rss_bytes) / count
    figures = {cpu: Figure(cpu_us, "us"), memory: Figure(grown_bytes, "bytes")}
    return {name: figure for name, figure in figures.items() if name}


def time_figures(name: str, times: Histogram) -> dict[str, Figure]:
    """Return the median and the 99th percentile as figures; none if nothing was counted."""
    if not times.count:
        return {}
    p50, p99 = times.percentiles((50, 99))
    return {f"{name}_p50": Figure(p50 / 1e3, "us"), f"{name}_p99": Figure(p99 / 1e3, "us")}


def _plain(value: Any) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _per(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
