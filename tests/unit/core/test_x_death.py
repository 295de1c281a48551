"""What the headers of dead letters say. The expected tables are those of RabbitMQ 4.3."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.core.message.x_death import COUNT_MAX, Death, is_cycle, past_queues, record_death

NOW_S = 1_700_000_000
NOW = datetime.fromtimestamp(NOW_S, UTC)


def died(queue: str, reason: str = "rejected", expiration: str | None = None) -> Death:
    """Return a death of a message that was published to the queue by its name."""
    return Death(queue, reason, "", (queue,), expiration, NOW_S)


def event(queue: str, reason: str = "rejected", count: int = 1) -> dict[str, Any]:
    """Return the table of such a death."""
    return {"count": count, "reason": reason, "queue": queue, "time": NOW, "exchange": "", "routing-keys": [queue]}


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_first_death(reason: str) -> None:
    """The first death is an array of one table, and is written down once more for ever; it is the last one, too."""
    assert record_death({"n": 1}, Death("q", reason, "x", ("key", "cc"), None, NOW_S)) == {
        "x-death": [
            {"count": 1, "reason": reason, "queue": "q", "time": NOW, "exchange": "x", "routing-keys": ["key", "cc"]}
        ],
        "x-first-death-reason": reason,
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
        "x-last-death-reason": reason,
        "x-last-death-queue": "q",
        "x-last-death-exchange": "x",
    }


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_original_expiration(reason: str) -> None:
    """A message's own expiration is told as it was written, whatever the message died of."""
    assert record_death({}, died("q", reason, "+5"))["x-death"] == [{**event("q", reason), "original-expiration": "+5"}]


def test_later_deaths() -> None:
    """The latest death is in front of the others, the first one and the last one are told beside them."""
    headers: dict[str, Any] = {}
    orders = []
    for queue in ("h1", "h2", "h3", "h1"):
        headers |= record_death(headers, died(queue))
        orders.append([event["queue"] for event in headers["x-death"]])
        assert headers["x-last-death-queue"] == queue
    assert orders == [["h1"], ["h2", "h1"], ["h3", "h2", "h1"], ["h1", "h3", "h2"]]
    assert headers["x-first-death-queue"] == "h1"
    assert [found["count"] for found in headers["x-death"]] == [2, 1, 1]


def test_death_of_a_known_kind() -> None:
    """A death of a queue and reason that is known counts there, in front, and keeps what the first one said."""
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
    """The latest table of the death's own kind counts on, and those behind it are left out."""
    mine = {"queue": "h1", "reason": "rejected"}
    other = {"queue": "z", "reason": "expired"}
    headers = {"x-death": [other, {**mine, "count": 5}, mine, other]}
    assert record_death(headers, died("h1"))["x-death"] == [{**mine, "count": 6}, other, other]


@pytest.mark.parametrize("past", [[], ["bogus"], "bogus", 5, None, {"queue": "q"}])
def test_header_that_tells_of_no_death(past: Any) -> None:
    """What is no array of tables is forgotten: the death is the first one."""
    assert record_death({"x-death": past}, died("q")) == record_death({}, died("q"))


@pytest.mark.parametrize("count", [None, "many", True, 2.5, [1]])
def test_counts_that_are_none(count: Any) -> None:
    """A count that is no number begins anew."""
    headers = {"x-death": [{**event("q"), "count": count}]}
    assert record_death(headers, died("q"))["x-death"] == [event("q")]


def test_counts_have_an_end() -> None:
    """A count that would not fit into a table stays."""
    headers = {"x-death": [event("q", count=COUNT_MAX)]}
    assert record_death(headers, died("q"))["x-death"][0]["count"] == COUNT_MAX


def test_entries_that_are_no_deaths() -> None:
    """What is no table is left out; a table of anything is kept, for it may be another broker's."""
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
    """A message may not come back to where it died, unless it was rejected there or after that."""
    assert is_cycle("q", events) is cycle


def test_past_queues() -> None:
    """The queues are told as the deaths are."""
    assert past_queues([event("b"), {}, {"queue": b"\xff"}, event("a")]) == ["b", "a"]
