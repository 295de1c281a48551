"""The report's calculations without Spark: time slices, forecast, axis numbers, lag and skew."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.pipeline.report.broker_sections import consumer_rows, tap_rows
from broker.pipeline.report.traffic import (
    AHEAD_DAYS,
    DAY_MS,
    HOUR_MS,
    filled,
    forecast,
    moment_axis,
    slice_ms,
    slice_name,
)
from broker.slot_files.seal_view import SealView

MONDAY_MS = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("span_ms", "name"),
    [
        (0, "second"),
        (100_000, "second"),
        (HOUR_MS, "minute"),
        (DAY_MS, "15 minutes"),
        (7 * DAY_MS, "hour"),
        (30 * DAY_MS, "6 hours"),
        (365 * DAY_MS, "week"),
        (20 * 365 * DAY_MS, "7 weeks"),
    ],
)
def test_a_week_is_told_hour_by_hour(span_ms: int, name: str) -> None:
    """Slices are whole units of time, as small as a chart can show."""
    size_ms = slice_ms(MONDAY_MS, MONDAY_MS + span_ms)
    assert slice_name(size_ms) == name
    assert len(filled({}, MONDAY_MS, MONDAY_MS + span_ms, size_ms)) <= 169


def test_slices_without_messages_are_there() -> None:
    """A pause is zeros, and the first and the last slice are complete."""
    first_ms, last_ms = MONDAY_MS + 10, MONDAY_MS + 3 * HOUR_MS
    assert filled({MONDAY_MS: 5, MONDAY_MS + 3 * HOUR_MS: 7}, first_ms, last_ms, HOUR_MS) == [5, 0, 0, 7]


def days(counts: list[int]) -> dict[int, int]:
    """Return counts per day, starting on Monday."""
    return {MONDAY_MS + at * DAY_MS: count for at, count in enumerate(counts)}


def test_growth_is_carried_on() -> None:
    """Two weeks or more that grow by ten a day continue growing; partial days at the ends are ignored."""
    counts = [3, *range(100, 300, 10), 1]
    made = forecast(
        days(counts),
        MONDAY_MS + DAY_MS // 2,
        MONDAY_MS + (len(counts) - 1) * DAY_MS + 5,
        lake_rows=1000,
        lake_bytes=50_000,
        free_bytes=10_000_000,
    )
    assert made is not None
    assert math.isclose(made["messages_a_day"], 290)
    assert math.isclose(made["growth_a_day"], 10)
    assert [row["days"] for row in made["ahead"]] == list(AHEAD_DAYS)
    assert math.isclose(made["ahead"][0]["lake_bytes"], 50_000 + 50 * (290 * 7 + 10 * 49 / 2))
    assert made["full_in_days"] is not None
    full = made["full_in_days"]
    assert math.isclose(50 * (290 * full + 10 * full * full / 2), 10_000_000)


def test_a_falling_lake_never_shrinks_nor_fills() -> None:
    """Declining traffic never shrinks the lake, and a disk that it will not fill has no full date."""
    counts = [0, *range(200, 40, -10), 0]
    last_ms = MONDAY_MS + (len(counts) - 1) * DAY_MS + 5
    made = forecast(days(counts), MONDAY_MS, last_ms, lake_rows=10, lake_bytes=1000, free_bytes=1 << 40)
    assert made is not None
    assert made["full_in_days"] is None
    sizes = [row["lake_bytes"] for row in made["ahead"]]
    assert sizes == sorted(sizes)
    assert sizes[-1] == sizes[-2]


def test_a_short_history_goes_on_as_it_was() -> None:
    """Less than two weeks has no trend, because weekends would distort it."""
    made = forecast(days([60, 60]), MONDAY_MS, MONDAY_MS + 2 * DAY_MS, lake_rows=120, lake_bytes=240, free_bytes=1200)
    assert made is not None
    assert (made["messages_a_day"], made["growth_a_day"], made["full_in_days"]) == (60, 0, 10)


def test_less_than_an_hour_is_no_history() -> None:
    """Less than an hour of history gives no forecast."""
    assert forecast({}, MONDAY_MS, MONDAY_MS + 60_000, lake_rows=5, lake_bytes=5, free_bytes=5) is None


def test_moments_are_marked_at_round_times() -> None:
    """A day has marks at hours, and the first mark of each day names the day."""
    axis = moment_axis(MONDAY_MS + 22 * HOUR_MS, MONDAY_MS + 30 * HOUR_MS)
    marks = axis.ticks
    assert [axis.place(at_ms) for at_ms, _ in (marks[0], marks[4], marks[8])] == [0, 0.5, 1]
    assert [text for _, text in marks] == [
        "22:00",
        "23:00",
        "17 Nov",
        "01:00",
        "02:00",
        "03:00",
        "04:00",
        "05:00",
        "06:00",
    ]
    assert all(at_ms % HOUR_MS == 0 for at_ms, _ in marks)


def seal(number: int, count: int, at_ms: int, tap: str = "t") -> dict[str, Any]:
    """Return the line of a sealed slot."""
    facts: dict[str, Any] = {"number": 1, "first": 0, "end": count, "crc": 0, "bytes": count * 10, "last_ts_ms": at_ms}
    facts |= {"ahead_ms": 0, "incarnation": "i"}
    return {"k": "seal", "seal": number, "vhost": "/", "queue": tap, "count": count, "first_ts_ms": at_ms, **facts}


def test_a_cursor_is_behind_by_what_it_has_not_passed() -> None:
    """Lag counts the tap's slots, messages and bytes after the cursor's seal, and the age of the oldest."""
    cursor = {"k": "cursor", "vhost": "/", "tap": "t", "at_ms": 0, "user": ""}
    view = SealView(
        [
            seal(1, 5, 1000), seal(2, 7, 2000), seal(3, 9, 3000, "other"), seal(4, 11, 4000),
            {**cursor, "name": "slow", "seal": 1}, {**cursor, "name": "done", "seal": 4},
        ]
    )  # fmt: skip
    rows = {(row["tap"], row["cursor"]): row for row in tap_rows(view, 10_000)}
    assert set(rows) == {("t", "slow"), ("t", "done"), ("other", None)}
    slow = rows["t", "slow"]
    assert (slow["lag_slots"], slow["lag_messages"], slow["lag_bytes"], slow["lag_s"]) == (2, 18, 180, 8)
    assert (rows["t", "done"]["lag_slots"], rows["t", "done"]["lag_s"]) == (0, 0)
    assert rows["other", None]["lag_messages"] == 9


def test_skew_is_the_busiest_share_by_an_even_one() -> None:
    """Even consumers have skew 1, one that holds all has their number, and consumers without messages have none."""

    def queue(name: str, messages: int) -> dict[str, Any]:
        return {
            "vhost": "/", "name": name, "messages": messages, "messages_ready": messages, "messages_unacknowledged": 0,
        }  # fmt: skip

    def holding(name: str, *held: int) -> list[dict[str, Any]]:
        return [{"vhost": "/", "queue": name, "messages_unacknowledged": count} for count in held]

    rows = consumer_rows(
        [queue("even", 3), queue("one", 2), queue("idle", 1), queue("empty", 0)],
        [*holding("even", 4, 4), *holding("one", 0, 6, 0), *holding("idle", 0)],
    )
    assert [(row["queue"], row["skew"], row["consumers"]) for row in rows] == [
        ("even", 1.0, 2), ("one", 3.0, 3), ("idle", None, 1),
    ]  # fmt: skip
