"""The verdict: each kind of fault is reported and fails the run, and explained deviations are excused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from demo.ledger import REDELIVERED_SHIFT, Count, Ledger
from demo.plan import QueuePlan

pytest.importorskip("numpy", reason="needs the extra [demo]")

from demo.display import Watch
from demo.verdict import QueueVerdict, judge, show_report, total

KEYS = ["flight.UA.late", "flight.AA.late", "flight.UA.on-time"]
PLAN = [QueuePlan("ua", "# last", ("flight.UA.#",)), QueuePlan("late", "# first", ("#.late",))]
EXPECTED = ((0, 2), (0, 1))
REDELIVERED = 1 << REDELIVERED_SHIFT


def perfect() -> Ledger:
    """Return the ledger of a run without faults: each flight confirmed once and in its queues."""
    ledger = Ledger(len(KEYS), len(PLAN), clients=1, checksums=[0] * len(KEYS))
    for row in range(len(KEYS)):
        ledger.attempts[row] = ledger.confirmed[row] = 1
    for queue, rows in enumerate(EXPECTED):
        for row in rows:
            ledger.copies(queue)[row] = 1
    return ledger


def verdict_on(ledger: Ledger, *, killed: bool = False, left: tuple[int, int] = (0, 0)) -> QueueVerdict:
    """Return the verdict on all queues together."""
    return total(judge(ledger, PLAN, KEYS, left, killed=killed))


def test_perfect_run_holds() -> None:
    """The verdict is clean when every queue received its flights once."""
    assert verdict_on(perfect()) == QueueVerdict(4, 4, 0, 0, 0, 0, 0, 0)
    assert all(verdict.holds for verdict in judge(perfect(), PLAN, KEYS, (0, 0), killed=False))


def test_missing_flight_is_told_and_whether_it_was_confirmed() -> None:
    """An undelivered flight is missing, and the verdict says whether it was confirmed."""
    ledger = perfect()
    ledger.copies(0)[2] = 0
    assert (verdict_on(ledger).missing, verdict_on(ledger).missing_confirmed) == (1, 1)
    ledger.confirmed[2] = 0
    assert (verdict_on(ledger).missing, verdict_on(ledger).missing_confirmed) == (1, 0)
    assert not verdict_on(ledger).holds


def test_flight_in_a_wrong_queue_is_unexpected() -> None:
    """A flight in a queue without a matching binding is unexpected."""
    ledger = perfect()
    ledger.copies(0)[1] = 1
    assert (verdict_on(ledger).unexpected, verdict_on(ledger).missing) == (1, 0)
    assert not verdict_on(ledger).holds


def test_second_fresh_copy_needs_a_second_publish() -> None:
    """A second copy without the flag is an unexplained duplicate, unless the flight was published twice."""
    ledger = perfect()
    ledger.copies(1)[0] = 2
    assert (verdict_on(ledger).duplicates, verdict_on(ledger).unexplained) == (1, 1)
    assert not verdict_on(ledger).holds
    ledger.attempts[0] = 2
    assert (verdict_on(ledger).duplicates, verdict_on(ledger).unexplained) == (1, 0)
    assert verdict_on(ledger).holds


def test_redelivered_copy_needs_a_killed_broker() -> None:
    """The redelivered flag excuses a copy only after a kill."""
    ledger = perfect()
    ledger.copies(1)[0] += REDELIVERED
    assert (verdict_on(ledger, killed=True).duplicates, verdict_on(ledger, killed=True).unexplained) == (1, 0)
    assert verdict_on(ledger, killed=True).holds
    assert not verdict_on(ledger, killed=False).holds


def test_flight_that_came_only_as_redelivered_is_there_and_no_duplicate() -> None:
    """A message in transit at the kill may first arrive with the flag."""
    ledger = perfect()
    ledger.copies(1)[0] = REDELIVERED
    assert verdict_on(ledger, killed=True) == QueueVerdict(4, 4, 0, 0, 0, 0, 0, 0)


def test_messages_left_in_a_queue_speak_against_it() -> None:
    """A queue with messages left after all acks is a fault."""
    assert verdict_on(perfect(), left=(0, 5)).left == 5
    assert not verdict_on(perfect(), left=(0, 5)).holds


GOOD = QueueVerdict(
    expected=10, got=10, missing=0, missing_confirmed=0, unexpected=0, duplicates=3, unexplained=0, left=0
)


def reported(
    verdict: QueueVerdict, change: Callable[[Ledger], object] = bool, stopped: float | str | None = 0.1
) -> bool:
    """Print the report of a run in which 3 flights were published in 2 s and 23 messages arrived in 4 s."""
    ledger = perfect()
    counts = ledger.counts(0)
    counts[Count.PUBLISHED], counts[Count.CONFIRMED], counts[Count.DELIVERED] = 5, 4, 24
    change(ledger)
    watch = Watch(ledger, 24, now_s=5.0)
    watch.began_s, watch.published_s, watch.down_s = 1.0, 3.0, 0.5
    return show_report(PLAN, [GOOD, verdict], ledger, watch, stopped, plain=True)


def test_good_run_ends_with_a_table_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row per kind and the sums; explained duplicates are no failure."""
    assert reported(GOOD)
    output = capsys.readouterr().out
    cells = [line.split() for line in output.splitlines()]
    assert ["#", "last", "1", "10", "10", "0", "0", "3", "0", "0"] in cells
    assert ["all", "2", "20", "20", "0", "0", "6", "0", "0"] in cells
    assert "in 2.0 s: 2 flights/s" in output and "in 4.0 s: 6 messages/s" in output
    assert "ready again after 0.50 s" in output and "within 0.10 s of SIGTERM" in output
    assert "OK" in output and "FAILED" not in output


@pytest.mark.parametrize(
    ("verdict", "change", "stopped", "words"),
    [
        (replace(GOOD, missing=2, missing_confirmed=2), bool, 0.1, "2 confirmed flights are missing"),
        (replace(GOOD, missing=2), bool, 0.1, "2 unconfirmed flights are missing"),
        (replace(GOOD, unexpected=1), bool, 0.1, "1 flights were delivered to a queue that no binding"),
        (replace(GOOD, unexplained=1), bool, 0.1, "1 duplicates were neither redelivered nor resent"),
        (replace(GOOD, left=4), bool, 0.1, "4 messages were left"),
        (GOOD, lambda ledger: ledger.counts(0).__setitem__(Count.ALTERED, 1), 0.1, "1 deliveries were altered"),
        (GOOD, lambda ledger: ledger.counts(0).__setitem__(Count.RETURNED, 1), 0.1, "1 flights were returned"),
        (GOOD, lambda ledger: ledger.confirmed.__setitem__(1, 0), 0.1, "1 flights were never confirmed"),
        (GOOD, bool, "did not end", "did not end"),
    ],
)
def test_every_fault_fails_the_run(
    verdict: QueueVerdict,
    change: Callable[[Ledger], object],
    stopped: float | str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each kind of fault is named and fails the run; a faulty queue is shown with its bindings."""
    assert not reported(verdict, change, stopped)
    output = capsys.readouterr().out
    assert f"FAILED: {words}" in output
    assert ("late (# first: #.late)" in output) == (verdict is not GOOD)
