"""Keeps the reports of a run's processes, shows them interval by interval, and sums them up."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from broker.perf.driver import DONE, TICK
from broker.perf.histogram import Histogram
from broker.perf.outcome import RunOutcome, RunTally
from broker.perf.progress import RunProgress
from broker.perf.result import Interval, LatencyPair

_TICK_GRACE_S: Final = 0.5  # for the ticks of an interval to arrive on a busy machine
_LEAST_INTERVAL_S: Final = 0.001
_TIMES: Final = frozenset(("due_times", "sent_times", "late_times", "confirm_times"))


class Ledger:
    """The tallies and times of a run, by role.

    Units: seconds since the beginning of the run, except `begin_s`, which is on the monotonic clock.
    Invariant: the intervals of the outcome add up to its tally.
    """

    def __init__(self, outcome: RunOutcome, progress: RunProgress, interval_s: float) -> None:
        self.begin_s = 0.0
        self.moved_s = 0.0  # the time of the last change of a count
        self.done: dict[str, dict[str, Any]] = {}  # the last figures of the roles that are done
        self._outcome = outcome
        self._progress = progress
        self._interval_s = interval_s
        self._tallies: dict[str, RunTally] = {}
        self._told_ns: dict[str, int] = {}
        self._within = Histogram()  # due times of the interval
        self._shown = RunTally()
        self._shown_s = 0.0

    @property
    def sum(self) -> RunTally:
        """The sum of all tallies."""
        return sum(self._tallies.values(), RunTally())

    def told_since(self, at_s: float, roles: frozenset[str]) -> bool:
        """Return whether each of these roles has reported at this time or later, or is done."""
        at_ns = (self.begin_s + at_s) * 1e9
        return all(role in self.done or self._told_ns.get(role, 0) >= at_ns for role in roles)

    def take(self, reports: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Enter reports."""
        outcome = self._outcome
        for role, word, figures in reports:
            if word not in (TICK, DONE):
                continue
            if figures["tally"] != self._tallies.get(role):
                self.moved_s = time.monotonic() - self.begin_s
            self._tallies[role] = figures["tally"]
            self._told_ns[role] = figures["at_ns"]
            for name in _TIMES & figures.keys():
                times = Histogram.from_list(figures[name])
                getattr(outcome, name).merge(times)
                if name == "due_times":
                    self._within.merge(times)
            if word == DONE:
                self.done[role] = figures

    def show_intervals(self, at_s: float, roles: frozenset[str]) -> None:
        """Show the intervals that are over and that all of these roles have reported."""
        while at_s >= (end_s := self._shown_s + self._interval_s):
            if at_s < end_s + _TICK_GRACE_S and not self.told_since(end_s, roles):
                return
            self._show(end_s)

    def ended_s(self, roles: frozenset[str], now_s: float) -> float:
        """Return when the last of these roles finished its last message, `now_s` for a role that is not done."""
        if not roles:
            return 0.0
        if not roles <= self.done.keys():
            return now_s
        ended_ns: int = max(self.done[role]["ended_ns"] for role in roles)
        return max(0.0, ended_ns / 1e9 - self.begin_s)

    def conclude(self) -> None:
        """Enter the remaining counts, the generator's usage and the failures into the outcome."""
        outcome, last = self._outcome, self.done.values()
        outcome.tally = self.sum
        outcome.cpu_s = sum(figures["cpu_s"] for figures in last)
        outcome.busy_share = max((figures["busy_share"] for figures in last), default=0.0)
        outcome.failures += dict.fromkeys(figures["fault"] for figures in last if figures["fault"])
        blocked = next((text for figures in last if (text := figures.get("blocked_for"))), "")
        if blocked:
            outcome.failures.append(f"the broker takes no messages (connection.blocked): {blocked}")
        if outcome.seconds > self._shown_s + _LEAST_INTERVAL_S:
            self._show(outcome.seconds)
        elif outcome.intervals:
            self._amend()

    def _show(self, at_s: float) -> None:
        """Add the interval that ends here."""
        total, seconds = self.sum, at_s - self._shown_s
        since = total - self._shown
        latency = LatencyPair.of(self._within)
        interval = Interval(at_s, since.published, since.confirmed, since.delivered, latency)
        self._outcome.intervals.append(interval)
        self._progress.interval(interval, seconds)
        self._within.clear()
        self._shown, self._shown_s = total, at_s

    def _amend(self) -> None:
        """Add later reports to the last interval."""
        since, last = self.sum - self._shown, self._outcome.intervals[-1]
        self._outcome.intervals[-1] = replace(
            last,
            published=last.published + since.published,
            confirmed=last.confirmed + since.confirmed,
            delivered=last.delivered + since.delivered,
        )
