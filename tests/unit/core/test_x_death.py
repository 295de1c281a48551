"""The headers of dead letters. The expected tables are those of RabbitMQ 4.3."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.core.message.x_death import COUNT_MAX, Death, is_cycle, past_queues, record_death

NOW_S = 1_700_000_000
NOW = datetime.fromtimestamp(NOW_S, UTC)


def died(queue: str, reason: str = "rejected", expiration: str | None = None) -> Death:
    """Return the death of a message that was published to the queue by its name."""
    return Death(queue, reason, "", (queue,), expiration, NOW_S)


def event(queue: str, reason: str = "rejected", count: int = 1) -> dict[str, Any]:
    """Return the x-death table of such a death."""
    return {"count": count, "reason": reason, "queue": queue, "time": NOW, "exchange": "", "routing-keys": [queue]}


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_original_expiration(reason: str) -> None:
    """The original expiration is kept as it was written, whatever the reason of the death."""
    assert record_death({}, died("q", reason, "+5"))["x-death"] == [{**event("q", reason), "original-expiration": "+5"}]


def test_death_of_a_known_kind() -> None:
    """A repeated death of a queue and reason increments its table, moves it to the front and keeps its other fields."""
    old = {**event("h1"), "time": 5, "routing-keys": ["other"], "more": None}
    headers = {"x-death": [event("h3"), old, event("h2")]}
    assert record_death(headers, died("h1", expiration="9")) == {
        "x-death": [{**old, "count": 2}, event("h3"), event("h2")],
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "h1",
        "x-last-death-exchange": "",
    }
    assert record_death(headers, died("h1", "expired"))["x-death"] == [
        event("h1", "expired"),
        event("h3"),
        old,
        event("h2"),
    ]


def test_kinds_that_a_publisher_repeats() -> None:
    """The first table of the death's kind is incremented, and its duplicates are dropped."""
    mine = {"queue": "h1", "reason": "rejected"}
    other = {"queue": "z", "reason": "expired"}
    headers = {"x-death": [other, {**mine, "count": 5}, mine, other]}
    assert record_death(headers, died("h1"))["x-death"] == [{**mine, "count": 6}, other, other]


@pytest.mark.parametrize("past", [[], ["bogus"], "bogus", 5, None, {"queue": "q"}])
def test_header_that_tells_of_no_death(past: Any) -> None:
    """A header that is not an array of tables is ignored: the death is the first one."""
    assert record_death({"x-death": past}, died("q")) == record_death({}, died("q"))


@pytest.mark.parametrize("count", [None, "many", True, 2.5, [1]])
def test_counts_that_are_none(count: Any) -> None:
    """A count that is not a number starts over."""
    headers = {"x-death": [{**event("q"), "count": count}]}
    assert record_death(headers, died("q"))["x-death"] == [event("q")]


def test_counts_have_an_end() -> None:
    """A count that would exceed its type stays."""
    headers = {"x-death": [event("q", count=COUNT_MAX)]}
    assert record_death(headers, died("q"))["x-death"][0]["count"] == COUNT_MAX


def test_entries_that_are_no_deaths() -> None:
    """Entries that are not tables are dropped; any table is kept, because another broker may have written it."""
    strange = [5, "h1", [event("h1")], {}, {"queue": ["h1"], "reason": {"a": 1}}, {"queue": b"\xff"}]
    assert record_death({"x-death": strange}, died("h1"))["x-death"] == [event("h1"), *strange[3:]]


CYCLES: list[tuple[list[dict[str, Any]], bool]] = [
    ([], False),
    ([event("q", "expired")], True),
    ([event("q", "maxlen")], True),
    ([event("q", "delivery_limit")], True),
    ([event("q")], False),
    ([event("other", "expired")], False),
    ([event("other", "expired"), event("q", "maxlen")], True),
    ([event("other"), event("q", "expired")], False),
    ([event("other", "expired"), event("q"), event("q", "expired")], False),
    ([event("q", "expired"), event("other")], True),
    ([{}, {"queue": 5}, event("q", "expired")], True),
]


@pytest.mark.parametrize(("events", "cycle"), CYCLES)
def test_cycles(events: list[dict[str, Any]], cycle: bool) -> None:
    """A message may not return to where it died, unless it was rejected there or later."""
    assert is_cycle("q", events) is cycle


def test_past_queues() -> None:
    """The queues are listed in the order of the deaths."""
    assert past_queues([event("b"), {}, {"queue": b"\xff"}, event("a")]) == ["b", "a"]
