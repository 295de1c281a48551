"""The outcome of a run, added up from the reports of its processes, and the result document made from it."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, NamedTuple, Self

from broker.perf.histogram import Histogram
from broker.perf.machine import MachineFacts, TreeUsage
from broker.perf.progress import RunProgress, interval_line
from broker.perf.result import (
    BrokerFacts,
    Figure,
    Generator,
    Interval,
    Latency,
    LatencyPair,
    ProcessUse,
    Result,
    RunTotals,
)

_BUSY_SHARE: Final = 0.9  # of a core: a busier generator process limits the run
_TICK_GRACE_S: Final = 0.5  # how long to wait for late reports of an interval
_INTERVAL_MIN_S: Final = 0.001
_NOT_OPTIONS: Final = frozenset(("run", "scenario", "uri", "words", "json", "plot", "quiet", "pid", "version"))
_HISTOGRAMS: Final = frozenset(("due_times", "sent_times", "late_times", "confirm_times"))
_FLOWS: Final = ("published", "confirmed", "delivered")  # the counts of an interval


class RunTally(NamedTuple):
    """Counts of messages since the run began, in one process or in all."""

    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    delivered: int = 0
    acked: int = 0
    deliver_bytes: int = 0
    blocked: int = 0  # publishers that the broker currently blocks

    @classmethod
    def total(cls, tallies: Iterable[RunTally]) -> Self:
        return cls(*map(sum, zip(cls(), *tallies, strict=True)))


@dataclass(slots=True)
class RunOutcome:
    """The counts and times of a run, as its processes report them by role.

    Units: seconds since the beginning of the run, but `begin_s` is on the monotonic clock; `publish_s` is when
    the last publisher was done, `deliver_s` when the last message was delivered.
    Invariant: after `conclude`, the intervals add up to the tally.
    """

    progress: RunProgress
    interval_s: float
    begin_s: float = 0.0
    moved_s: float = 0.0  # when a count last changed
    tallies: dict[str, RunTally] = field(default_factory=dict)
    reported_ns: dict[str, int] = field(default_factory=dict)  # when each role reported last
    done: dict[str, dict[str, Any]] = field(default_factory=dict)  # the final figures of the roles that are done
    intervals: list[Interval] = field(default_factory=list)
    seconds: float = 0.0
    publish_s: float = 0.0
    deliver_s: float = 0.0
    due_times: Histogram = field(default_factory=Histogram)
    sent_times: Histogram = field(default_factory=Histogram)
    late_times: Histogram = field(default_factory=Histogram)
    confirm_times: Histogram = field(default_factory=Histogram)
    before: TreeUsage | None = None
    after: TreeUsage | None = None
    queued_at_end: int = 0  # messages in the queues when the publishers finished
    left_behind: int = 0  # messages not delivered when the time was over
    cpu_s: float = 0.0  # of all generator processes
    busy_share: float = 0.0  # of the busiest generator process
    failures: list[str] = field(default_factory=list)
    interrupted: bool = False
    _interval_times: Histogram = field(default_factory=Histogram)  # `due_times` of the current interval
    _shown: RunTally = field(default_factory=RunTally)

    @property
    def tally(self) -> RunTally:
        return RunTally.total(self.tallies.values())

    def reported_since(self, at_s: float, roles: frozenset[str]) -> bool:
        """Return whether each of these roles is done or has reported at this time or later."""
        at_ns = (self.begin_s + at_s) * 1e9
        return all(role in self.done or self.reported_ns.get(role, 0) >= at_ns for role in roles)

    def add_report(self, role: str, figures: dict[str, Any], *, done: bool) -> None:
        if figures["tally"] != self.tallies.get(role):
            self.moved_s = time.monotonic() - self.begin_s
        self.tallies[role] = figures["tally"]
        self.reported_ns[role] = figures["at_ns"]
        for name in _HISTOGRAMS & figures.keys():
            getattr(self, name).merge(figures[name])
        if "due_times" in figures:
            self._interval_times.merge(figures["due_times"])
        if done:
            self.done[role] = figures

    def show_intervals(self, at_s: float, roles: frozenset[str]) -> None:
        """Show the intervals that have ended, once all of these roles have reported or the grace period is over."""
        while at_s >= (end_s := self._shown_s + self.interval_s):
            if at_s < end_s + _TICK_GRACE_S and not self.reported_since(end_s, roles):
                return
            self._show(end_s)

    def conclude(self, publishers: frozenset[str], consumers: frozenset[str]) -> None:
        """Set the end times and the CPU figures, and add the last interval and the failures of these processes."""
        now_s, last = time.monotonic() - self.begin_s, self.done.values()
        self.cpu_s = sum(figures["cpu_s"] for figures in last)
        self.busy_share = max((figures["busy_share"] for figures in last), default=0.0)
        self.publish_s, self.deliver_s = self._ended_s(publishers, now_s), self._ended_s(consumers, now_s)
        self.seconds = max(self.publish_s, self.deliver_s) or now_s
        self.failures += dict.fromkeys(figures["fault"] for figures in last if figures["fault"])
        blocked = next((text for figures in last if (text := figures.get("blocked_for"))), "")
        if blocked:
            self.failures.append(f"the broker accepts no messages (connection.blocked): {blocked}")
        if self.seconds > self._shown_s + _INTERVAL_MIN_S:
            self._show(self.seconds)
        elif self.intervals:
            late, last_one = self._interval(self._shown_s), self.intervals[-1]
            counts = {name: getattr(last_one, name) + getattr(late, name) for name in _FLOWS}
            self.intervals[-1] = replace(last_one, **counts)

    @property
    def _shown_s(self) -> float:
        return self.intervals[-1].at_s if self.intervals else 0.0

    def _ended_s(self, roles: frozenset[str], now_s: float) -> float:
        """Return when the last of these roles ended: 0 without roles, `now_s` if any of them is not done."""
        if not roles <= self.done.keys():
            return now_s
        ended_ns: int = max((self.done[role]["ended_ns"] for role in roles), default=0)
        return max(0.0, ended_ns / 1e9 - self.begin_s)

    def _show(self, at_s: float) -> None:
        interval, seconds = self._interval(at_s), at_s - self._shown_s
        self.intervals.append(interval)
        self.progress.show(interval_line(interval, seconds))
        self._interval_times.clear()
        self._shown = self.tally

    def _interval(self, at_s: float) -> Interval:
        """Return what was reported since the previous interval."""
        tally = self.tally
        since = {name: getattr(tally, name) - getattr(self._shown, name) for name in _FLOWS}
        return Interval(at_s, **since, latency_us=LatencyPair.of(self._interval_times))

    def totals(self, body_bytes: int) -> RunTotals:
        tally = self.tally
        return RunTotals(
            *tally[:6],
            publish_per_s=tally.published / (self.publish_s or inf),
            confirm_per_s=tally.confirmed / (self.publish_s or inf),
            deliver_per_s=tally.delivered / (self.deliver_s or inf),
            publish_bytes=tally.published * body_bytes,
            deliver_bytes=tally.deliver_bytes,
        )

    def process(self) -> ProcessUse | None:
        """Return what the broker's processes used, or None if it was not measured."""
        if self.before is None or self.after is None:
            return None
        cpu_s, messages = self.after.cpu_s - self.before.cpu_s, max(self.tally.published, self.tally.delivered)
        each_us = cpu_s / messages * 1e6 if messages else None
        return ProcessUse(cpu_s, each_us, self.after.rss_bytes, self.after.peak_rss_bytes)

    def result(
        self, options: Namespace, product: str, figures: Mapping[str, Figure], ceiling_per_s: float | None
    ) -> Result:
        """Return the result document of a run that ends now.

        Its `options` leave out the broker's URL, --pid and the options of the output.
        """
        undelivered = {"queued_at_end": self.queued_at_end, "left_behind": self.left_behind}
        started = datetime.fromtimestamp(time.time() - self.seconds, UTC)
        return Result(
            scenario=options.scenario,
            arguments=tuple(getattr(options, "words", ())),
            started=started.isoformat(timespec="seconds")[:19] + "Z",
            broker=BrokerFacts(product, options.uri.host, options.uri.port),
            options={name: value for name, value in vars(options).items() if name not in _NOT_OPTIONS},
            seconds=self.seconds,
            intervals=tuple(self.intervals),
            totals=self.totals(getattr(options, "size", 0)),
            latency_us=Latency.of(self.due_times),
            confirm_latency_us=Latency.of(self.confirm_times),
            generator=Generator(self.cpu_s, self.busy_share, ceiling_per_s, self.busy_share > _BUSY_SHARE),
            process=self.process(),
            machine=MachineFacts.here(),
            figures={**figures, **{name: Figure(count, "messages") for name, count in undelivered.items() if count}},
            failures=tuple(self.failures),
        )


def cost_figures(
    before: TreeUsage | None, after: TreeUsage | None, count: int, *, cpu: str = "", memory: str = ""
) -> dict[str, Figure]:
    """Return the broker's CPU time and memory growth per item, under the names that are not ""; {} if not measured."""
    if before is None or after is None or not count:
        return {}
    cpu_us, grown_bytes = (after.cpu_s - before.cpu_s) / count * 1e6, max(0, after.rss_bytes - before.rss_bytes) / count
    figures = {cpu: Figure(cpu_us, "us"), memory: Figure(grown_bytes, "bytes")}
    return {name: figure for name, figure in figures.items() if name}


def time_figures(name: str, times: Histogram) -> dict[str, Figure]:
    """Return the median and the 99th percentile as figures; {} for an empty histogram."""
    pair = LatencyPair.of(times)
    return {f"{name}_p50": Figure(pair.p50, "us"), f"{name}_p99": Figure(pair.p99, "us")} if pair else {}
