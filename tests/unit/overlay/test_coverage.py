"""The numbers of a stream that have arrived."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.progress import Coverage

RANGES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=20)


@given(start=st.integers(0, 10), ranges=RANGES)
def test_it_is_a_set_of_numbers(start: int, ranges: list[tuple[int, int]]) -> None:
    """Ranges in any order, overlapping or not, come to the set of their numbers."""
    coverage = Coverage(start)
    numbers = set(range(1, start + 1))
    for first, length in ranges:
        coverage.add(first, first + length)
        numbers |= set(range(first, first + length + 1))
        assert [number in coverage for number in range(1, 60)] == [number in numbers for number in range(1, 60)]
        upto = next(number for number in range(1, 60) if number not in numbers) - 1
        assert coverage.upto == upto
        hole = coverage.hole(50)
        assert hole is not None
        assert hole[0] == upto + 1
        assert not numbers & set(range(hole[0], hole[1] + 1))
        assert hole[1] == 50 or hole[1] + 1 in numbers


def test_there_is_no_hole_at_the_end() -> None:
    """Nothing is missing of a stream that has reached what has arrived."""
    assert Coverage(5).hole(5) is None
    assert Coverage(5).hole(7) == (6, 7)


def test_later_ranges_can_be_forgotten() -> None:
    """They are a hole again."""
    coverage = Coverage(5)
    coverage.add(8, 9)
    assert coverage.ranges == 1
    coverage.forget_later()
    assert coverage.hole(9) == (6, 9)
