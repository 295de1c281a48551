"""The numbers of a stream that have arrived, and acks that stand still."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.packets import Space
from broker.overlay.progress import Coverage, LagWatch

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


SPACE = Space("/", "orders")


def test_only_acks_that_stand_still_are_told_and_again_after_a_while() -> None:
    """Acks that follow slowly, and a stream of which nothing is missing, are not stuck."""
    watch = LagWatch(400, 1_000)
    moving = [watch.is_stuck(SPACE, needed=now_ms, sent=10_000, now_ms=now_ms) for now_ms in range(100, 2_000, 100)]
    assert not any(moving)
    standing = [now_ms for now_ms in range(2_000, 5_000, 100) if watch.is_stuck(SPACE, 7, 9, now_ms)]
    assert standing == [2_400, 3_400, 4_400]
    assert not watch.is_stuck(SPACE, 10, 9, 5_000)
    assert not watch.is_stuck(SPACE, 10, 10, 9_000)
    assert watch.is_stuck(SPACE, 10, 10, 9_400)
