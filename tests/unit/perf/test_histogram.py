"""The histogram: three digits from a nanosecond to an hour, merged and carried without loss."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.perf.histogram import HIGHEST_NS, Histogram

DURATIONS = st.integers(0, HIGHEST_NS)


def _of(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(DURATIONS)
def test_a_duration_comes_back_to_three_digits(value: int) -> None:
    """Every percentile of a single recorded duration equals it, within one part in a thousand."""
    histogram = _of([value])
    for percent in (0, 50, 99.9, 100):
        assert abs(histogram.percentile(percent) - value) * 1000 <= value


@given(st.lists(DURATIONS, min_size=1, max_size=60), st.floats(0, 100))
def test_a_percentile_is_that_of_the_sorted_list(values: list[int], percent: float) -> None:
    """A percentile is the smallest duration that the share does not exceed, to three digits."""
    found = _of(values).percentile(percent)
    enough = [
        value for value in values if sum(v <= value for v in values) * 10**8 >= round(percent * 10**6) * len(values)
    ]
    assert abs(found - min(enough)) * 1000 <= min(enough)


@pytest.mark.slow
@given(st.lists(DURATIONS, max_size=40), st.lists(DURATIONS, max_size=40))
def test_merging_is_recording_all_in_one(first: list[int], second: list[int]) -> None:
    """Merged histograms equal one that recorded all durations, also after a way through a pipe."""
    merged, percents = _of(first), (0, 25, 50, 99, 100)
    merged.merge(pickle.loads(pickle.dumps(_of(second))))
    assert merged.percentiles(percents) == _of(first + second).percentiles(percents)
    assert merged.count == len(first) + len(second)


def test_a_count_records_as_often() -> None:
    """Recording with a count equals recording this many times."""
    histogram = Histogram()
    histogram.record(1_000, 99)
    histogram.record(5_000_000)
    assert histogram.count == 100
    assert histogram.percentiles((50, 99)) == [1_000, 1_000]
    assert histogram.percentile(100) == pytest.approx(5_000_000, rel=0.001)


def test_the_mean_is_that_of_the_durations() -> None:
    """The mean of many durations is right to three digits."""
    draw = random.Random(4)
    values = [draw.randrange(10**8) for _ in range(2_000)]
    assert _of(values).mean_ns == pytest.approx(sum(values) / len(values), rel=0.001)


def test_what_no_clock_can_give_counts_at_the_ends() -> None:
    """A negative duration counts as zero, one above an hour as an hour."""
    histogram = _of([-5, HIGHEST_NS * 10])
    assert histogram.percentile(50) == 0
    assert histogram.percentile(100) == pytest.approx(HIGHEST_NS, rel=0.001)


def test_an_empty_histogram_answers_zero() -> None:
    """Without durations, at first or after a reset, the count, the mean and every percentile are 0."""
    histogram = _of([7])
    histogram.clear()
    assert (histogram.count, histogram.mean_ns, histogram.percentiles((50, 99))) == (0, 0.0, [0, 0])
