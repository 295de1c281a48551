"""The outcome of a run, as its processes reported it, and the result that is shown of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.perf.histogram import Histogram
from broker.perf.machine import MachineFacts
from broker.perf.peer import Address
from broker.perf.process_tree import TreeUsage
from broker.perf.result import BrokerFacts, Figure, Generator, Interval, Latency, ProcessUse, Result, RunTotals
from broker.perf.tally import RunTally

BUSY_SHARE: Final = 0.9  # of a core: above this share the generator limits the run
_NOT_OPTIONS: Final = frozenset(("run", "scenario", "uri", "words", "json", "plot", "quiet", "pid", "version"))


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
        tally = self.tally
        return RunTotals(
            published=tally.published,
            confirmed=tally.confirmed,
            nacked=tally.nacked,
            returned=tally.returned,
            delivered=tally.delivered,
            acked=tally.acked,
            publish_per_s=_per(tally.published, self.publish_s),
            confirm_per_s=_per(tally.confirmed, self.publish_s),
            deliver_per_s=_per(tally.delivered, self.deliver_s),
            publish_bytes=tally.published * body_bytes,
            deliver_bytes=tally.deliver_bytes,
        )

    def generator(self, ceiling_per_s: float | None) -> Generator:
        """Return the figures of the generator itself."""
        return Generator(self.cpu_s, self.busy_share, ceiling_per_s, self.busy_share > BUSY_SHARE)

    def process(self) -> ProcessUse | None:
        """Return what the broker's process used, None if it was not measured."""
        return used(self.before, self.after, max(self.tally.published, self.tally.delivered))


def used(before: TreeUsage | None, after: TreeUsage | None, messages: int) -> ProcessUse | None:
    """Return the difference between two readings of a process's usage."""
    if before is None or after is None:
        return None
    cpu_s = after.cpu_s - before.cpu_s
    return ProcessUse(cpu_s, cpu_s / messages * 1e6 if messages else None, after.rss_bytes, after.peak_rss_bytes)


def result_of(
    options: argparse.Namespace,
    product: str,
    outcome: RunOutcome,
    *,
    figures: Mapping[str, Figure] | None = None,
    ceiling_per_s: float | None = None,
) -> Result:
    """Return the result document of a run that moved messages."""
    address: Address = options.uri
    return Result(
        scenario=options.scenario,
        arguments=tuple(getattr(options, "words", ())),
        started=started(outcome.seconds),
        broker=BrokerFacts(product, address.host, address.port),
        options=shown_options(options),
        seconds=outcome.seconds,
        intervals=tuple(outcome.intervals),
        totals=outcome.totals(options.size),
        latency_us=Latency.of(outcome.due_times),
        confirm_latency_us=Latency.of(outcome.confirm_times),
        generator=outcome.generator(ceiling_per_s),
        process=outcome.process(),
        machine=MachineFacts.here(),
        figures=dict(figures or {}) | _undelivered(outcome),
        failures=tuple(outcome.failures),
    )


def _undelivered(outcome: RunOutcome) -> dict[str, Figure]:
    counts = {"queued_at_end": outcome.queued_at_end, "left_behind": outcome.left_behind}
    return {name: Figure(count, "messages") for name, count in counts.items() if count}


def shown_options(options: argparse.Namespace) -> dict[str, object]:
    """Return the options as JSON values, without output targets and credentials."""
    return {name: _plain(value) for name, value in vars(options).items() if name not in _NOT_OPTIONS}


def started(seconds: float) -> str:
    """Return the start time, in UTC, of something that took `seconds` and ends now."""
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() - seconds, UTC).isoformat(timespec="seconds")[:19] + "Z"


def _plain(value: Any) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _per(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
