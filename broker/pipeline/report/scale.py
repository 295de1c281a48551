"""Numbers as people read them on an axis: steps of 1, 2 and 5, powers of ten as k and M, bytes as KiB, times."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from broker.pipeline.report.time_slices import DAY_MS, HOUR_MS, MINUTE_MS

__all__ = ["BYTES", "bytes_text", "count_text", "duration_text", "many", "moment_ticks", "steps"]

STEPS: Final = (1, 2, 5, 10)
BYTES: Final = 1024
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
THOUSANDS: Final = ("", "k", "M", "G", "T", "P")
SPANS: Final = ((31_536_000, "y", 86_400, "d"), (86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
TICK_SIZES_MS: Final = tuple(
    count * unit_ms
    for unit_ms, counts in (
        (1000, (1, 2, 5, 10, 15, 30)),
        (MINUTE_MS, (1, 2, 5, 10, 15, 30)),
        (HOUR_MS, (1, 2, 3, 6, 12)),
        (DAY_MS, (1, 2, 7, 14, 28, 91, 364)),
    )
    for count in counts
)


def steps(most: float, count: int = 4, *, base: int = 1000) -> list[float]:
    """Return round values from 0 up to the first that is not below the largest; whole numbers from 1 on.

    Shapes: `base` is 1024 where the values are sizes, so that they are round in KiB and MiB.
    """
    if most <= 0:
        return [0.0, 1.0]
    unit = 1
    while base == BYTES and most >= unit * base:
        unit *= base
    return [value * unit for value in _decimal(most / unit, count)]


def _decimal(most: float, count: int) -> list[float]:
    rough = most / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in STEPS if unit * factor >= rough * (1 - 1e-9))
    if most >= count:
        step = max(1.0, step)
    made = [0.0]
    while made[-1] < most * (1 - 1e-9):
        made.append(step * len(made))
    return made


def count_text(value: float) -> str:
    """Return a count in three digits: 950, 1.2k, 34M."""
    return _short(value, 1000, THOUSANDS, "")


def bytes_text(value: float) -> str:
    """Return a size in three digits: 950 B, 1.2 KiB."""
    return _short(value, BYTES, UNITS, " ")


def _short(value: float, base: int, units: tuple[str, ...], gap: str) -> str:
    for unit in units:
        text = f"{value:.{0 if value >= 99.95 else 1}f}".removesuffix(".0")
        if float(text) < base or unit == units[-1]:
            return f"{text}{gap if unit else ''}{unit}"
        value /= base
    raise AssertionError(value)


def many(count: int, noun: str) -> str:
    """Return a count with its noun: 1 message, 1,234 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration_text(seconds: float) -> str:
    """Return a time span in its largest unit and the next: 2 d 3 h, 40 s."""
    whole = round(seconds)
    for size, name, smaller, smaller_name in SPANS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def moment_ticks(first_ms: int, last_ms: int, count: int = 8) -> list[tuple[int, str]]:
    """Return round moments of a span, with a text each that says no more than is needed."""
    span_ms = max(1, last_ms - first_ms)
    size_ms = next((size for size in TICK_SIZES_MS if span_ms / size <= count), TICK_SIZES_MS[-1])
    form = "%d %b" if size_ms >= DAY_MS else "%H:%M" if size_ms >= MINUTE_MS else "%H:%M:%S"
    made = []
    before = None
    for at_ms in range(-(-first_ms // size_ms) * size_ms, last_ms + 1, size_ms):
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        shown = form
        if size_ms < DAY_MS and before is not None and moment.date() != before:
            shown = "%d %b"
        before = moment.date()
        made.append((at_ms, moment.strftime(shown)))
    return made
