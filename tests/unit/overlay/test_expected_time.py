"""When a leaf repeats what it announced."""

from __future__ import annotations

import itertools

from tests.overlay.reference.constraints import MAX_MS, ExpectedTime


def test_only_a_message_with_an_earlier_time_is_late() -> None:
    """A later time of a message stands for the earlier ones, too."""
    expected = ExpectedTime()
    assert not expected.is_late(0, 10**6)
    expected.expect(3, 0)
    expected.expect(4, 10)
    assert not expected.is_late(3, 400)
    assert not expected.is_late(4, 10**6)
    assert expected.is_late(3, 10**6)
    assert not expected.is_late(5, 10**7)


def test_the_time_follows_what_was_measured() -> None:
    """As a round trip: the smoothed time and four times its variation."""
    expected = ExpectedTime()
    for time in range(1, 60):
        expected.expect(time, 10_000 * time)
        expected.is_late(time, 10_000 * time + 500)
    expected.expect(99, 10**6)
    assert not expected.is_late(98, 10**6 + 499)
    assert expected.is_late(98, 10**6 + 520)


def test_repetitions_come_later_and_later() -> None:
    """Up to a limit."""
    expected = ExpectedTime()
    expected.expect(1, 0)
    due = [now for now in range(0, 200_000, 100) if expected.is_late(0, now)]
    waits = [after - before for before, after in itertools.pairwise(due)]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_MS
