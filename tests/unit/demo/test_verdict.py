"""The verdict: each kind of fault is reported and fails the run, and explained deviations are excused."""

from collections.abc import Callable

import pytest

from demo.ledger import Count, Ledger
from demo.plan import QueuePlan, matched

pytest.importorskip("numpy", reason="needs the extra [demo]")

import numpy as np

from demo.display import Watch
from demo.verdict import COLUMNS, judge, show_report

KEYS = ["flight.UA.late", "flight.AA.late", "flight.UA.on-time"]
PLAN = [QueuePlan("ua", "# last", ("flight.UA.#",)), QueuePlan("late", "# first", ("#.late",))]
HITS = np.array([matched(queue.binding_keys, sorted(KEYS)) for queue in PLAN])
EXPECTED = ((0, 2), (0, 1))


def perfect() -> Ledger:
    """Return the ledger of a run without faults: each flight confirmed once and in its queues."""
    ledger = Ledger(len(KEYS), len(PLAN), clients=1, checksums=[0] * len(KEYS))
    for row in range(len(KEYS)):
        ledger.attempts[row] = ledger.confirmed[row] = 1
    for queue, rows in enumerate(EXPECTED):
        for row in rows:
            ledger.copies(queue, False)[row] = 1
    return ledger


@pytest.mark.parametrize(
    ("queue", "row", "cell", "change", "killed", "faults"),
    [
        (0, 0, (1, 0), {}, False, {}),
        (0, 2, (0, 0), {}, False, {"got": 3, "missing": 1, "missing and confirmed": 1}),
        (0, 2, (0, 0), {"confirmed": 0}, False, {"got": 3, "missing": 1}),
        (0, 1, (1, 0), {}, False, {"got": 5, "unexpected": 1}),  # no binding led the flight there
        (1, 0, (2, 0), {}, False, {"duplicates": 1, "unexplained": 1}),
        (1, 0, (2, 0), {"attempts": 2}, False, {"duplicates": 1}),  # it was published twice
        (1, 0, (1, 1), {}, False, {"duplicates": 1, "unexplained": 1}),
        (1, 0, (1, 1), {}, True, {"duplicates": 1}),
        (1, 0, (0, 1), {}, True, {}),  # it was in transit at the kill: the first copy has the flag
    ],
)
def test_every_deviation_is_counted(
    queue: int, row: int, cell: tuple[int, int], change: dict[str, int], killed: bool, faults: dict[str, int]
) -> None:
    """A run without a fault but for one cell has no other count than this one; the redelivered flag needs a kill."""
    ledger = perfect()
    for flag, copies in zip((False, True), cell, strict=True):
        ledger.copies(queue, flag)[row] = copies
    for field, value in change.items():
        getattr(ledger, field)[row] = value
    verdict = dict(zip(COLUMNS, judge(ledger, HITS, KEYS, (0, 0), killed=killed).sum(0).tolist(), strict=True))
    assert verdict == {**dict.fromkeys(COLUMNS, 0), "expected": 4, "got": 4, **faults}


def test_messages_left_in_a_queue_are_counted_there() -> None:
    """A queue with messages left after all acks is a fault."""
    verdicts = judge(perfect(), HITS, KEYS, (0, 5), killed=False)
    assert verdicts[:, COLUMNS.index("left")].tolist() == [0, 5]


GOOD = {"expected": 10, "got": 10, "duplicates": 3}


def reported(verdict: dict[str, int], change: Callable[[Ledger], object] = bool, unstopped: str = "") -> bool:
    """Print the report of a run in which 4 flights were published in 2 s and 24 messages arrived in 4 s."""
    ledger = perfect()
    counts = ledger.counts(0)
    counts[Count.PUBLISHED], counts[Count.CONFIRMED], counts[Count.DELIVERED] = 5, 4, 24
    change(ledger)
    watch = Watch(ledger, 24, now_s=5.0)
    watch.began_s, watch.published_s = 1.0, 3.0
    verdicts = np.array([[one.get(column, 0) for column in COLUMNS] for one in (GOOD, GOOD | verdict)])
    return show_report(PLAN, verdicts, ledger, watch, unstopped)


def test_good_run_ends_with_a_table_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row per kind and the sums; explained duplicates are not failure."""
    assert reported({})
    output = capsys.readouterr().out
    cells = [line.split() for line in output.splitlines()]
    assert ["#", "last", "1", "10", "10", "0", "0", "3", "0", "0"] in cells
    assert ["all", "2", "20", "20", "0", "0", "6", "0", "0"] in cells
    assert "in 2.0 s: 2 flights/s" in output and "in 4.0 s: 6 messages/s" in output
    assert "OK" in output and "FAILED" not in output


@pytest.mark.parametrize(
    ("verdict", "change", "unstopped", "words"),
    [
        ({"missing": 2, "missing and confirmed": 2}, bool, "", "2 confirmed flights are missing"),
        ({"missing": 2}, bool, "", "2 unconfirmed flights are missing"),
        ({"unexpected": 1}, bool, "", "1 flights were delivered to a queue that no binding"),
        ({"unexplained": 1}, bool, "", "1 duplicates were neither redelivered nor resent"),
        ({"left": 4}, bool, "", "4 messages were left"),
        ({}, lambda ledger: ledger.counts(0).__setitem__(Count.ALTERED, 1), "", "1 deliveries were altered"),
        ({}, lambda ledger: ledger.counts(0).__setitem__(Count.RETURNED, 1), "", "1 flights were returned"),
        ({}, lambda ledger: ledger.confirmed.__setitem__(1, 0), "", "1 flights were never confirmed"),
        ({}, bool, "did not end", "did not end"),
    ],
)
def test_every_fault_fails_the_run(
    verdict: dict[str, int],
    change: Callable[[Ledger], object],
    unstopped: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each kind of fault is named and fails the run; a faulty queue is shown with its bindings."""
    assert not reported(verdict, change, unstopped)
    output = capsys.readouterr().out
    assert f"FAILED: {words}" in output
    assert ("late (# first: #.late)" in output) == bool(verdict)
