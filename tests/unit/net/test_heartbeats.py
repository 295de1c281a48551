"""When a heartbeat is due: after half an interval in which nothing was sent, whatever the interval."""

from __future__ import annotations

import pytest

from broker.net.heartbeats import SHORT_INTERVAL_MAX_S, Heartbeats
from broker.net.listener import STEPS


def gaps(interval: int, looks: int, talks: frozenset[int] = frozenset()) -> list[int]:
    """Return how many looks lie between two heartbeats; the client is sent something before the looks in `talks`."""
    heartbeats, sent_bytes, found, last = Heartbeats(), 0, [], 0
    heartbeats.is_due(sent_bytes, interval)
    for look in range(1, looks + 1):
        sent_bytes += look in talks
        if heartbeats.is_due(sent_bytes, interval):
            sent_bytes += 8
            heartbeats.sent(sent_bytes)
            found.append(look - last)
            last = look
    return found


@pytest.mark.parametrize("interval_s", [1, 2, 3, SHORT_INTERVAL_MAX_S])
def test_short_intervals_are_halved(interval_s: int) -> None:
    """Between two heartbeats lies half the interval, in tenths of a second."""
    assert set(gaps(interval_s * STEPS, 100 * STEPS)) == {interval_s * STEPS // 2}


def test_long_intervals_are_halved() -> None:
    """A second is exact enough for them."""
    assert set(gaps(60, 600)) == {30}


def test_whatever_is_sent_counts_as_a_heartbeat() -> None:
    """Output in each half interval makes a heartbeat unnecessary."""
    assert gaps(2 * STEPS, 100, frozenset(range(1, 101, STEPS // 2))) == []
