"""Counting confirms, compared with a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.perf.scanner import Confirms


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40))
def test_count_is_that_of_the_set_of_confirmed_numbers(confirms: list[tuple[int, bool]]) -> None:
    """Single, multiple and repeated confirms in any order count every number once."""
    counted = Confirms()
    known: set[int] = set()
    for tag, multiple in confirms:
        counted.add(tag, multiple=multiple)
        known |= set(range(1, tag + 1)) if multiple else {tag}
        assert counted.count == len(known)
        assert all(number > counted.watermark + 1 for number in counted.above)


def test_single_confirms_in_order_keep_nothing() -> None:
    """Confirms in order leave nothing above the watermark, whatever their number."""
    confirms = Confirms()
    for tag in range(1, 1001):
        confirms.add(tag, multiple=False)
    assert (confirms.watermark, confirms.above) == (1000, set())
