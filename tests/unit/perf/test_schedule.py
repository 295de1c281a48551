"""The due times of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.perf.sender import Schedule


@pytest.mark.parametrize("per_s", [0.001, 0.3, 1, 3, 7.7, 300, 999.999, 12_345, 1_000_000, 3_000_000_000])
def test_when_a_message_is_due_it_counts_as_due_and_not_before(per_s: float) -> None:
    """At its due time a message counts as due, and not before, at every rate and after years."""
    schedule = Schedule(per_s, 10**15)
    for number in (*range(50), 10**6, 10**9 + 7):
        at_ns = schedule.due_ns(number)
        assert schedule.due(at_ns) >= number + 1
        assert schedule.due(at_ns - 1) <= number


@given(st.floats(min_value=0.001, max_value=1e7), st.integers(min_value=0, max_value=10**12))
def test_what_is_due_is_what_the_times_say(per_s: float, elapsed_ns: int) -> None:
    """The last due message is due by now, and the next one is not."""
    schedule = Schedule(per_s, 0)
    count = schedule.due(elapsed_ns)
    assert schedule.due_ns(count - 1) <= elapsed_ns < schedule.due_ns(count)


def test_nothing_is_due_before_the_start_and_a_second_has_its_rate() -> None:
    """Nothing is due before the start, and 300 per second are 300 from the start of a second to its end."""
    schedule = Schedule(300, 5000)
    assert (schedule.due(4999), schedule.due(5000), schedule.due(5000 + 10**9 - 1)) == (0, 1, 300)
