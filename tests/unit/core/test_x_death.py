"""What the headers of dead letters say. The expected tables are those of RabbitMQ 3.10.8, asked with pika."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.core.x_death import COUNT_MAX, Death, is_cycle, past_queues, record_death

NOW_S = 1_700_000_000
NOW = datetime.fromtimestamp(NOW_S, UTC)


def died(queue: str, reason: str = "rejected", expiration: str | None = None) -> Death:
    """Returns a death of a message that was published to the queue by its name."""
    return Death(queue, reason, "", (queue,), expiration, NOW_S)


def event(queue: str, reason: str = "rejected", count: int = 1) -> dict[str, Any]:
    """Returns the table of such a death."""
    return {"count": count, "reason": reason, "queue": queue, "time": NOW, "exchange": "", "routing-keys": [queue]}


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_first_death(reason: str) -> None:
    """The first death is an array of one table, and is written down once more for ever."""
    assert record_death({"n": 1}, Death("q", reason, "x", ("key", "cc"), None, NOW_S)) == {
        "x-death": [
            {"count": 1, "reason": reason, "queue": "q", "time": NOW, "exchange": "x", "routing-keys": ["key", "cc"]}
        ],
        "x-first-death-reason": reason,
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
    }


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_original_expiration(reason: str) -> None:
    """A message's own expiration is told as it was written, whatever the message died of."""
    ((first,), *_) = record_death({}, died("q", reason, "+5")).values()
    assert first == {**event("q", reason), "original-expiration": "+5"}


def test_later_deaths() -> None:
    """The latest death is in front; those behind it are turned around by each death, and the first death stays."""
    headers: dict[str, Any] = {}
    orders = []
    for queue in ("h1", "h2", "h3", "h4"):
        headers |= record_death(headers, died(queue))
        orders.append([event["queue"] for event in headers["x-death"]])
    assert orders == [["h1"], ["h2", "h1"], ["h3", "h1", "h2"], ["h4", "h2", "h1", "h3"]]
    assert headers["x-first-death-queue"] == "h1"
    assert [found["count"] for found in headers["x-death"]] == [1, 1, 1, 1]


def test_death_of_a_known_kind() -> None:
    """A death of a queue and reason that is known counts there, in front, and keeps what the first one said."""
    old = {**event("h1"), "time": 5, "routing-keys": ["other"], "more": None}
    headers = {"x-death": [event("h3"), old, event("h2")]}
    assert record_death(headers, died("h1", expiration="9")) == {
        "x-death": [{**old, "count": 2}, event("h2"), event("h3")]
    }
    assert record_death(headers, died("h1", "expired")) == {
        "x-death": [event("h1", "expired"), event("h2"), old, event("h3")]
    }


def test_kinds_that_a_publisher_repeats() -> None:
    """Tables of the same kind become one, which counts them where it has no count of its own."""
    past = [{"queue": "z", "reason": "expired"}] * 2 + [
        {"queue": "h1", "reason": "rejected"},
        {"queue": "h1", "reason": "rejected", "count": 5},
    ]
    assert record_death({"x-death": past}, died("h1")) == {
        "x-death": [
            {"count": 3, "queue": "h1", "reason": "rejected"},
            {"count": 2, "queue": "z", "reason": "expired"},
        ]
    }


def test_empty_array() -> None:
    """A message that says that it never died has no first death any more."""
    assert record_death({"x-death": []}, died("q")) == {"x-death": [event("q")]}


@pytest.mark.parametrize("past", ["bogus", 5, None, {"queue": "q"}])
def test_header_of_another_type(past: Any) -> None:
    """What is no array is forgotten, and the first death is not told."""
    assert record_death({"x-death": past}, died("q")) == {"x-death": [event("q")]}


@pytest.mark.parametrize("count", [None, "many", True, 2.5, [1]])
def test_counts_that_are_none(count: Any) -> None:
    """A count that is no number begins anew."""
    headers = {"x-death": [{**event("q"), "count": count}]}
    assert record_death(headers, died("q")) == {"x-death": [event("q")]}


def test_counts_have_an_end() -> None:
    """A count that would not fit into a table stays."""
    headers = {"x-death": [event("q", count=COUNT_MAX)]}
    assert record_death(headers, died("q"))["x-death"][0]["count"] == COUNT_MAX


def test_entries_that_are_no_deaths() -> None:
    """What is no table is left out; a table of anything is kept, for it may be another broker's."""
    strange = [5, "h1", [event("h1")], {}, {"queue": ["h1"], "reason": {"a": 1}}, {"queue": b"\xff"}]
    assert record_death({"x-death": strange}, died("h1"))["x-death"] == [
        event("h1"),
        {"count": 1, "queue": b"\xff"},
        {"count": 1, "queue": ["h1"], "reason": {"a": 1}},
        {"count": 1},
    ]
    assert record_death({"x-death": [7]}, died("h1"))["x-death"] == [event("h1")]


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
    """A message may not come back to where it died, unless it was rejected there or after that."""
    assert is_cycle("q", events) is cycle


def test_past_queues() -> None:
    """The queues are told as the deaths are."""
    assert past_queues([event("b"), {}, {"queue": b"\xff"}, event("a")]) == ["b", "a"]
