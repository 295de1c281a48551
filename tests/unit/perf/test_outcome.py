"""The outcome of a run: what its processes reported, by interval and in all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from broker.perf.histogram import Histogram
from broker.perf.outcome import RunOutcome, RunTally
from broker.perf.progress import RunProgress

ROLE = frozenset({"publisher 0"})


def report(outcome: RunOutcome, published: int, at_s: float, *, done: bool = False) -> None:
    """Enter the report of a publisher."""
    at_ns = int((outcome.begin_s + at_s) * 1e9) + 1000
    last: dict[str, Any] = {"fault": "", "ended_ns": at_ns, "cpu_s": 0.1, "busy_share": 0.5} if done else {}
    times = Histogram()
    times.record(1000, published)
    figures = {"tally": RunTally(published), "at_ns": at_ns, "confirm_times": times, **last}
    outcome.add_report("publisher 0", figures, done=done)


@pytest.mark.parametrize("ended_s", [2.0, 2.5])
def test_intervals_add_up_although_the_last_report_comes_late(ended_s: float) -> None:
    """What is reported after the last full interval goes into it, or into a short one of its own."""
    outcome = RunOutcome(RunProgress(quiet=True), 1.0, begin_s=time.monotonic() - 3)
    report(outcome, 10, 1.0)
    outcome.show_intervals(1.1, ROLE)
    report(outcome, 25, 2.0)
    outcome.show_intervals(2.1, ROLE)
    assert [one.published for one in outcome.intervals] == [10, 15]
    report(outcome, 32, ended_s, done=True)
    outcome.conclude(ROLE, frozenset())
    assert [one.published for one in outcome.intervals] == ([10, 22] if ended_s == 2.0 else [10, 15, 7])
    assert outcome.tally.published == 32
    assert outcome.intervals[-1].at_s == pytest.approx(ended_s)
    assert outcome.seconds == outcome.publish_s == pytest.approx(ended_s)
    assert (outcome.cpu_s, outcome.busy_share) == (0.1, 0.5)


def test_an_interval_waits_a_moment_for_its_reports() -> None:
    """An interval is shown once every role has reported it, or half a second later."""
    outcome = RunOutcome(RunProgress(quiet=True), 1.0)
    report(outcome, 10, 0.9)
    outcome.show_intervals(1.4, ROLE)
    assert not outcome.intervals
    outcome.show_intervals(1.6, ROLE)
    assert [one.published for one in outcome.intervals] == [10]
