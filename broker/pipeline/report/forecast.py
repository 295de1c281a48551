"""The forecast at the current traffic: messages a day, the size of the lake, when the disk is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.pipeline.report.time_slices import DAY_MS, HOUR_MS

__all__ = ["AHEAD_DAYS", "Forecast", "forecast", "trend"]

AHEAD_DAYS: Final = (7, 14, 30, 60, 90)
TREND_DAYS: Final = 14  # whole days for a trend, so that weekends do not dominate
HISTORY_MIN_MS: Final = HOUR_MS


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast. Shapes: `growth` is the daily increase of the number of messages."""

    messages_a_day: float
    growth: float
    bytes_a_message: float
    lake_bytes: int
    free_bytes: int | None  # None in a bucket
    ahead: tuple[tuple[int, float], ...]  # (days from now, bytes of the lake)
    full_in_days: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the forecast in the report's JSON form."""
        return {
            "messages_a_day": self.messages_a_day,
            "growth_a_day": self.growth,
            "lake_bytes_a_message": self.bytes_a_message,
            "lake_bytes": self.lake_bytes,
            "free_bytes": self.free_bytes,
            "ahead": [{"days": days, "lake_bytes": size} for days, size in self.ahead],
            "full_in_days": self.full_in_days,
        }


def trend(days: Sequence[int]) -> tuple[float, float]:
    """Return the regression line: its value on the last day, and the slope. Source: least squares."""
    count = len(days)
    middle = (count - 1) / 2
    mean = sum(days) / count
    spread = sum((at - middle) ** 2 for at in range(count))
    slope = sum((at - middle) * (value - mean) for at, value in enumerate(days)) / spread if spread else 0.0
    return mean + slope * (count - 1 - middle), slope


def forecast(
    by_day: Mapping[int, int], first_ms: int, last_ms: int, *, lake_rows: int, lake_bytes: int, free_bytes: int | None
) -> Forecast | None:
    """Return the forecast; None for less than an hour of history, or no message.

    Shapes: `by_day` has messages by the beginning of a day in ms.
    """
    if last_ms - first_ms < HISTORY_MIN_MS or not lake_rows:
        return None
    whole = range(first_ms - first_ms % DAY_MS + DAY_MS, last_ms - last_ms % DAY_MS, DAY_MS)
    if len(whole) >= TREND_DAYS:
        rate, growth = trend([by_day.get(day, 0) for day in whole])
    else:
        rate, growth = sum(by_day.values()) * DAY_MS / (last_ms - first_ms), 0.0  # tomorrow is as today
    rate = max(0.0, rate)
    bytes_a_message = lake_bytes / lake_rows

    def added(days: float) -> float:
        """Return the bytes that `days` days add; a falling line ends at zero messages."""
        if growth < 0:
            days = min(days, rate / -growth)
        return bytes_a_message * (rate * days + growth * days * days / 2)

    return Forecast(
        messages_a_day=rate,
        growth=growth,
        bytes_a_message=bytes_a_message,
        lake_bytes=lake_bytes,
        free_bytes=free_bytes,
        ahead=tuple((days, lake_bytes + added(days)) for days in AHEAD_DAYS),
        full_in_days=_full_in_days(bytes_a_message * rate, bytes_a_message * growth, free_bytes),
    )


def _full_in_days(rate: float, growth: float, free: float | None) -> float | None:
    """Return when rate * t + growth * t^2 / 2 reaches the free space; None if it never does."""
    if free is None:
        return None
    if growth == 0:
        return free / rate if rate > 0 else None
    root = rate * rate + 2 * growth * free
    if root < 0:
        return None
    days: float = (root**0.5 - rate) / growth
    return days if days >= 0 else None
