"""The progress of recovery: what it says, and how it is stopped."""

import pytest

from broker.store.recovery import RecoveryProgress
from broker.vhosts.recovery_watch import RecoveryStopped, RecoveryWatch


def test_the_rest_is_estimated_from_what_was_read() -> None:
    """The estimate is that of one vhost, and there is none before the first report nor after the end."""
    now = 100.0
    watch = RecoveryWatch(lambda: now)
    assert watch.facts() == {}
    watch.begin("orders", 2, 3)
    assert watch.facts()["eta_s"] is None
    now = 102.0
    watch.report(RecoveryProgress(1000, 4000, 50))
    assert watch.facts() == {
        "vhost": "orders",
        "vhost_number": 2,
        "vhosts": 3,
        "percent": 25,
        "done_bytes": 1000,
        "total_bytes": 4000,
        "records": 50,
        "eta_s": 6.0,
    }
    watch.begin("/", 3, 3)
    assert watch.facts()["percent"] == 0
    watch.end()
    assert watch.facts() == {}


def test_a_report_after_the_stop_ends_the_recovery() -> None:
    """The thread learns at its next report that the broker was stopped."""
    watch = RecoveryWatch()
    watch.begin("/", 1, 1)
    watch.report(RecoveryProgress(1, 2, 1))
    watch.stop()
    with pytest.raises(RecoveryStopped):
        watch.report(RecoveryProgress(2, 2, 2))
