"""The record that a node keeps of functions that PostgreSQL fails to carry out."""

from __future__ import annotations

from broker.cluster.errors import DatabaseFails, StatementRefused
from broker.cluster.link import FRESH_S, FailingCalls


def test_the_newest_failure_counts_until_it_succeeds_or_is_old() -> None:
    """A function that no one needs any more is called no more, and raises no alarm for ever."""
    now_s = 0.0
    calls = FailingCalls(lambda: now_s)
    assert calls.reason == ""
    calls.failed("commit", DatabaseFails("disk full"))
    now_s = 1.0
    calls.failed("lease", DatabaseFails("denied"))
    assert calls.reason == "denied"
    calls.succeeded("lease")
    assert calls.reason == "disk full"
    now_s = FRESH_S + 0.1
    assert calls.reason == ""
    assert calls.count == 2


def test_a_call_that_is_refused_raises_no_alarm() -> None:
    """It says nothing of the next one, and neither does it hide a failure."""
    calls = FailingCalls(lambda: 0.0)
    calls.failed("append", StatementRefused("too large"))
    assert calls.reason == ""
    calls.failed("append", DatabaseFails("denied"))
    assert calls.reason == "denied"
