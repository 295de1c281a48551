"""The supervision of a run, with its own clock."""

from demo.ledger import Count, Ledger
from demo.progress import Snapshot
from demo.watch import Watch


def test_watch_knows_when_a_run_began_was_published_and_moved_last() -> None:
    """Each time is that of the check that noticed it; a run is complete when all deliveries are seen."""
    ledger = Ledger(rows=2, queues=1, clients=1, checksums=[0, 0])
    counts = ledger.counts(0)
    watch = Watch(ledger, deliveries=1, now_s=1.0)
    watch.look(2.0, "up")
    assert (watch.began_s, watch.moved_s) == (None, 1.0)
    counts[Count.PUBLISHED], counts[Count.RESENT] = 3, 1
    assert watch.look(3.0, "up") == Snapshot(3.0, 2, 0, 0, "up")
    counts[Count.CONFIRMED] = 2
    watch.look(4.0, "up")
    assert not watch.complete
    counts[Count.DELIVERED] = counts[Count.DISTINCT] = 1
    watch.look(5.0, "up")
    watch.look(6.0, "up")
    assert watch.complete
    assert (watch.began_s, watch.published_s, watch.moved_s) == (3.0, 4.0, 5.0)


def test_time_without_a_broker_is_no_stall() -> None:
    """After a restart the time without progress starts anew."""
    watch = Watch(Ledger(rows=1, queues=1, clients=1, checksums=[0]), deliveries=1, now_s=1.0)
    watch.excuse(9.0)
    watch.look(10.0, "up again")
    assert watch.moved_s == 9.0
