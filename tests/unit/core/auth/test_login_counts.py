"""The counts of logins: all of them by protocol, and by network as far as there is room."""

from __future__ import annotations

from broker.core.auth.login_counts import SOURCES_MAX, LoginCount, LoginCounts


def test_the_network_that_logged_in_longest_ago_is_forgotten() -> None:
    """A network that logs in again counts on and stays; the oldest other one makes room."""
    counts = LoginCounts()
    counts.note("amqp091", "first", refused=False)
    for number in range(SOURCES_MAX - 1):
        counts.note("amqp091", f"network {number}", refused=True)
    counts.note("amqp091", "first", refused=True)
    counts.note("amqp091", "last", refused=False)
    assert counts.by_source["first", "amqp091"] == LoginCount(succeeded=1, failed=1)
    assert counts.by_source["last", "amqp091"] == LoginCount(succeeded=1)
    assert ("network 0", "amqp091") not in counts.by_source
    assert len(counts.by_source) == SOURCES_MAX
    assert counts.by_protocol == {"amqp091": LoginCount(succeeded=2, failed=SOURCES_MAX)}
