"""When a leaf repeats what it announced."""

from __future__ import annotations

import itertools

from broker.overlay.expected_time import MAX_MS, ExpectedTime


def test_nothing_is_due_before_something_is_expected_or_after_it_came() -> None:
    """A later time of a message stands for the earlier ones, too."""
    expected = ExpectedTime()
    assert not expected.due(10**6)
    expected.expect(3, 0)
    expected.expect(4, 10)
    expected.observe(3, 400)
    assert expected.due(10**6)
    expected.observe(5, 10**6)
    assert not expected.due(10**7)


def test_the_time_follows_what_was_measured() -> None:
    """As a round trip: the smoothed time and four times its variation."""
    expected = ExpectedTime()
    for time in range(1, 60):
        expected.expect(time, 10_000 * time)
        expected.observe(time, 10_000 * time + 500)
    expected.expect(99, 10**6)
    assert not expected.due(10**6 + 499)
    assert expected.due(10**6 + 520)


def test_repetitions_come_later_and_later() -> None:
    """Up to a limit."""
    expected = ExpectedTime()
    expected.expect(1, 0)
    due = [now for now in range(0, 200_000, 100) if expected.due(now)]
    waits = [after - before for before, after in itertools.pairwise(due)]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_MS
