"""The verdict: each kind of fault is reported, and explained deviations are excused."""

import pytest

from demo.ledger import REDELIVERED_SHIFT, Ledger
from demo.plan import QueuePlan

pytest.importorskip("numpy", reason="needs the extra [demo]")

from demo.verdict import QueueVerdict, by_kind, judge, total

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


def test_verdicts_add_up_by_kind() -> None:
    """The verdict of each kind sums its queues."""
    ledger = perfect()
    ledger.copies(1)[1] = 0
    kinds = by_kind(PLAN, judge(ledger, PLAN, KEYS, (0, 0), killed=False))
    assert {kind: (queues, verdict.expected, verdict.missing) for kind, (queues, verdict) in kinds.items()} == {
        "# last": (1, 2, 0),
        "# first": (1, 2, 1),
    }
