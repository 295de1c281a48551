"""Axes: round ticks within the picture, and a position for every value."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.figures.axis import Axis, bucket_axis, decade_axis, even_axis, percentile_axis, slowest_percent, span_axis

VALUES = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=5)
MAKERS: dict[str, Callable[[list[float]], Axis]] = {
    "even": lambda values: even_axis("", values, str),
    "decade": lambda values: decade_axis("", values, str),
    "span": lambda values: span_axis("", 0.0, max(values), str),
}


@pytest.mark.parametrize("maker", MAKERS)
@given(values=VALUES)
def test_every_value_has_its_place_among_round_ticks(maker: str, values: list[float]) -> None:
    """Values keep their order between the ends, and ticks ascend and are few."""
    axis = MAKERS[maker](values)
    placed = [axis.place(value) for value in sorted(values)]
    assert placed == sorted(placed)
    assert 0 <= placed[0] <= placed[-1] <= 1
    assert axis.low <= min(values) * (1 + 1e-6)
    assert max(values) <= axis.high * (1 + 1e-6)
    marks = [value for value, _ in axis.ticks]
    assert marks == sorted(set(marks))
    assert 1 <= len(marks) <= 20
    assert all(axis.low * (1 - 1e-6) <= mark <= axis.high * (1 + 1e-6) for mark in marks)
    if maker != "decade" and len(marks) > 1:
        step = marks[1] - marks[0]
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


def test_an_even_axis_begins_at_zero_and_ends_round() -> None:
    """An axis to 143,000 ends at 150,000."""
    axis = even_axis("", [143_000.0], str)
    assert [value for value, _ in axis.ticks] == [0, 50_000, 100_000, 150_000]
    assert axis.place(75_000) == 0.5


def test_a_logarithmic_axis_gives_each_power_of_ten_the_same_room() -> None:
    """Ticks are at 1, 2 and 5 for few powers of ten, and at powers of ten only for many."""
    assert [value for value, _ in decade_axis("", [30, 400], str).ticks] == [20, 50, 100, 200, 500]
    wide = decade_axis("", [1, 1_000_000], str)
    assert [value for value, _ in wide.ticks] == [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000]
    assert wide.place(1_000) == pytest.approx(0.5)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0]])
def test_nothing_to_draw_is_an_axis_all_the_same(values: list[float]) -> None:
    """Zeros alone do not divide by zero."""
    for axis in (even_axis("", values, str), decade_axis("", values, str), span_axis("", 0.0, 0.0, str)):
        assert 0 <= axis.place(0.0) <= 1


def test_each_nine_has_the_same_room() -> None:
    """99 % is as far from 90 % as 99.9 % from 99 %; the slowest of a thousand is the last."""
    axis = percentile_axis("", slowest_percent(1000))
    steps = [axis.place(percent) for percent in (0.0, 90.0, 99.0, 99.9)]
    assert steps == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [text for _, text in axis.ticks] == ["0", "50", "90", "99", "99.9"]


def test_sizes_are_marked_in_whole_units() -> None:
    """An axis of bytes has round steps of KiB."""
    assert [value / 1024 for value, _ in even_axis("", [450 * 1024], str, base=1024).ticks] == [
        0,
        100,
        200,
        300,
        400,
        500,
    ]


def test_each_bucket_has_room() -> None:
    """Whole numbers are centred in their columns; of many, only some have labels."""
    axis = bucket_axis("", 0, 3, str)
    assert [axis.place(at) for at in range(4)] == [0.125, 0.375, 0.625, 0.875]
    assert [text for _, text in axis.ticks] == ["0", "1", "2", "3"]
    assert [text for _, text in bucket_axis("", 3, 99, str).ticks] == [str(at) for at in range(5, 100, 5)]
