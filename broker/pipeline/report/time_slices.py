"""The division of a time span into slices for a chart, and the chart's time axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from broker.figures.axis import Axis

__all__ = ["DAY_MS", "HOUR_MS", "filled", "instant", "moment_axis", "slice_ms", "slice_name"]

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MOST: Final = 7 * 24 + 1  # a week of hours that begins within an hour
SIZES: Final = {
    "second": SECOND_MS,
    "5 seconds": 5 * SECOND_MS,
    "15 seconds": 15 * SECOND_MS,
    "minute": MINUTE_MS,
    "5 minutes": 5 * MINUTE_MS,
    "15 minutes": 15 * MINUTE_MS,
    "hour": HOUR_MS,
    "6 hours": 6 * HOUR_MS,
    "day": DAY_MS,
    "week": 7 * DAY_MS,
}

TICK_SIZES_MS: Final = tuple(
    count * unit_ms
    for unit_ms, counts in (
        (SECOND_MS, (1, 2, 5, 10, 15, 30)),
        (MINUTE_MS, (1, 2, 5, 10, 15, 30)),
        (HOUR_MS, (1, 2, 3, 6, 12)),
        (DAY_MS, (1, 2, 7, 14, 28, 91, 364)),
    )
    for count in counts
)


def slice_ms(first_ms: int, last_ms: int) -> int:
    """Return the smallest slice size that needs no more slices than a week has hours; several weeks for long spans."""
    for size_ms in SIZES.values():
        if last_ms // size_ms - first_ms // size_ms < MOST:
            return size_ms
    week_ms = SIZES["week"]
    return week_ms * -(-((last_ms - first_ms) // week_ms + 2) // MOST)


def slice_name(size_ms: int) -> str:
    """Return the name of a slice size."""
    for name, known_ms in SIZES.items():
        if known_ms == size_ms:
            return name
    return f"{size_ms // SIZES['week']} weeks"


def filled(counts: Mapping[int, int], first_ms: int, last_ms: int, size_ms: int) -> list[int]:
    """Return the counts of all slices, including empty ones. Shapes: `counts` is by the slice's beginning."""
    return [counts.get(at_ms, 0) for at_ms in begins(first_ms, last_ms, size_ms)]


def begins(first_ms: int, last_ms: int, size_ms: int) -> Iterable[int]:
    """Return where the slices of a span begin."""
    return range(first_ms - first_ms % size_ms, last_ms + 1, size_ms)


def instant(at_ms: int) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_axis(first_ms: int, last_ms: int, count: int = 8) -> Axis:
    """Return the axis of a span, with ticks at round times, whose texts are as short as possible."""
    span_ms = max(1, last_ms - first_ms)
    size_ms = next((size for size in TICK_SIZES_MS if span_ms / size <= count), TICK_SIZES_MS[-1])
    form = "%d %b" if size_ms >= DAY_MS else "%H:%M" if size_ms >= MINUTE_MS else "%H:%M:%S"
    ticks: list[tuple[float, str]] = []
    before = None
    for at_ms in range(-(-first_ms // size_ms) * size_ms, last_ms + 1, size_ms):
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        next_day = before is not None and moment.date() != before
        before = moment.date()
        ticks.append((at_ms, moment.strftime("%d %b" if next_day else form)))
    return Axis("time (UTC)", first_ms, first_ms + span_ms, tuple(ticks), float)
