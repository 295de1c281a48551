"""Axes of charts: linear, in buckets, logarithmic, or by percentile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from broker.figures.numerals import digits

_STEPS: Final = (1, 2, 5, 10)
_NINES_MAX: Final = 4  # the nines after the decimal point of 99.9999 %
_DECADES_WITH_STEPS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart. Shapes: `ticks` are (value, text); `scaled` maps a value to a linear scale."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    scaled: Callable[[float], float]

    def place(self, value: float) -> float:
        """Return the position of a value, from 0 at the start to 1 at the end; values outside are clamped."""
        first, last = self.scaled(self.low), self.scaled(self.high)
        share = (self.scaled(value) - first) / ((last - first) or 1.0)
        return min(1.0, max(0.0, share))


def even_axis(
    title: str, values: Iterable[float], text: Callable[[float], str], count: int = 5, *, base: int = 1000
) -> Axis:
    """Return an axis from 0 to a round number at or above every value; `base` 1024 is for sizes."""
    most = max(values, default=0.0)
    if most <= 0:
        return Axis(title, 0.0, 1.0, ((0.0, text(0.0)),), _identity)
    unit = 1.0
    while base != 1000 and most >= unit * base:
        unit *= base
    step = _round_step(most / unit / count) * unit
    steps = math.ceil(most / step * (1 - 1e-9))
    return Axis(title, 0.0, step * steps, tuple((step * at, text(step * at)) for at in range(steps + 1)), _identity)


def span_axis(title: str, first: float, last: float, text: Callable[[float], str], count: int = 8) -> Axis:
    """Return an axis over an exact range, with ticks at the round numbers in it."""
    last = max(last, first + 1e-9)
    step = _round_step((last - first) / count)
    begin, end = math.ceil(first / step * (1 - 1e-9)), math.floor(last / step * (1 + 1e-9))
    return Axis(title, first, last, tuple((step * at, text(step * at)) for at in range(begin, end + 1)), _identity)


def bucket_axis(title: str, first: int, last: int, text: Callable[[int], str], count: int = 20) -> Axis:
    """Return an axis with a bucket for each whole number from `first` to `last`."""
    step = max(1, round(_round_step((last - first + 1) / count)))
    ticks = tuple((float(at), text(at)) for at in range(-(-first // step) * step, last + 1, step))
    return Axis(title, first - 0.5, last + 0.5, ticks, _identity)


def decade_axis(title: str, values: Iterable[float], text: Callable[[float], str]) -> Axis:
    """Return a logarithmic axis over all values above 0; its ends are 1, 2 or 5 times a power of ten."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = _round_below(min(known)), _round_above(max(known))
    if low == high:
        low, high = low / 10, high * 10
    decades = math.log10(high / low)
    factors: tuple[int, ...] = (1, 2, 5) if decades <= _DECADES_WITH_STEPS_MAX else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    marks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    ticks = tuple((mark, text(mark)) for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9))
    return Axis(title, low, high, ticks, lambda value: math.log10(max(value, 1e-9)))


def percentile_axis(title: str, max_percent: float) -> Axis:
    """Return an axis of percentiles up to `max_percent`, on which each further nine has the same width."""
    marks = [0.0, 50.0, 90.0, 99.0, *(100 - 10.0**-nines for nines in range(1, _NINES_MAX + 1))]
    ticks = [(mark, f"{mark:.6g}") for mark in marks if mark <= max_percent]
    return Axis(
        title, 0.0, max(max_percent, 50.0), tuple(ticks), lambda percent: -math.log10(max(1 - percent / 100, 1e-9))
    )


def slowest_percent(count: int) -> float:
    """Return the percentile of the slowest of `count` durations."""
    return 100 - 100 / max(count, 2)


def _identity(value: float) -> float:
    return value


def _round_step(rough: float) -> float:
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in _STEPS if unit * factor >= rough * (1 - 1e-9))


def _round_above(value: float) -> float:
    unit = 10.0 ** math.floor(math.log10(value))
    return float(digits(next(unit * factor for factor in _STEPS if unit * factor >= value * (1 - 1e-9))))


def _round_below(value: float) -> float:
    unit = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return float(digits(next(unit * factor for factor in reversed(_STEPS) if unit * factor <= value * (1 + 1e-9))))
