"""Dead letters: what their headers say, and how a message is restored to its original form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pamqp import header as pamqp_header

from broker.amqp.content_header import Properties, decode_properties
from broker.amqp.deaths import Publish, death_of, revived
from broker.core.message.x_death import Death as RecordedDeath
from broker.core.message.x_death import record_death

FIRST = RecordedDeath("work", "rejected", "ex", ("k1", "cc"), "5000", 1_790_000_000)
SECOND = RecordedDeath("parking", "expired", "dlx", ("k1",), None, 1_790_000_100)


def content_header(headers: dict[str, Any] | None = None, **properties: Any) -> bytes:
    """Return the payload of a content header frame."""
    return pamqp_header.ContentHeader(0, 0, Properties(headers=headers, **properties)).marshal()


def died(headers: dict[str, Any], *deaths: RecordedDeath) -> dict[str, Any]:
    """Return death headers as the broker writes them."""
    for death in deaths:
        headers = {**headers, **record_death(headers, death)}
    return headers


def test_a_death_is_the_latest_and_tells_of_the_first() -> None:
    """The latest death has its queue, reason, time and route; the first death has the original route."""
    death = death_of(content_header(died({"a": 1}, FIRST, SECOND)))
    assert death is not None
    assert (death.queue, death.reason, death.count, death.time_s) == ("parking", "expired", 1, 1_790_000_100)
    assert death.published == Publish("dlx", ("k1",), None)
    assert death.first_published == Publish("ex", ("k1", "cc"), "5000")
    again = death_of(content_header(died({}, FIRST, SECOND, FIRST, FIRST)))
    assert again is not None
    assert (again.queue, again.count, again.published) == ("work", 3, Publish("ex", ("k1", "cc"), "5000"))


def test_a_message_goes_back_as_it_was_published_with_a_mark() -> None:
    """The message is published without deaths, with its original expiration and headers, and a replay count."""
    dead = content_header(died({"a": 1, "CC": ["cc"]}, FIRST), content_type="text/plain")
    death = death_of(dead)
    assert death is not None
    back = decode_properties(revived(dead, death, death.published))
    assert (back.content_type, back.expiration) == ("text/plain", "5000")
    marked = {"x-replayed": 1, "x-replayed-queue": "work", "x-replayed-reason": "rejected"}
    assert back.headers == {"a": 1, "CC": ["cc"], **marked}
    alone = decode_properties(revived(dead, death, death.published, alone=True))
    assert "CC" not in (alone.headers or {})
    death = death_of(content_header(died(dict(back.headers), FIRST)))
    assert death is not None
    assert death.replayed == 1
    assert decode_properties(revived(dead, death, death.published)).headers["x-replayed"] == 2  # type: ignore[index]


def test_an_expiration_of_its_own_is_not_overwritten() -> None:
    """A present expiration is kept."""
    death = death_of(content_header(died({}, FIRST), expiration="7"))
    assert death is not None
    assert death.published.expiration is None


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(12),
        bytes(12) + b"\x00\x00",
        bytes(12) + b"\xff\xff",
        bytes(12) + b"\x20\x00\x00\x00\x00\x40\x07x-deathA",
        content_header({"x-death": "no"}),
        content_header({"x-death": []}),
        content_header({"x-death": [1, 2]}),
    ],
)
def test_what_has_not_died_has_no_death(header: bytes) -> None:
    """A message without deaths, or without a valid header, has no death."""
    assert death_of(header) is None


@pytest.mark.parametrize("original", ["x" * 300, "-1", "soon", 5])
def test_what_a_publisher_made_up_is_met(original: Any) -> None:
    """Fields of unexpected types are ignored, and an invalid original expiration is not restored."""
    made_up = {
        "x-death": [
            {"queue": 3, "count": "many", "time": "now", "routing-keys": [1, "k"], "original-expiration": original}
        ],
        "x-replayed": "x",
    }
    header = content_header(made_up)
    death = death_of(header)
    assert death is not None
    assert (death.queue, death.count, death.time_s, death.replayed) == ("", 1, None, 0)
    assert death.published == Publish("", ("k",), None)
    assert decode_properties(revived(header, death, death.published)).expiration is None
    odd = death_of(content_header({"x-death": [{"time": datetime(2026, 1, 1, tzinfo=UTC), "routing-keys": "k"}]}))
    assert odd is not None
    assert (odd.published.key, odd.reason) == ("", "")


def test_a_count_of_replays_ends_at_the_largest_number() -> None:
    """The count stops at the largest number, so that the header can always be written."""
    header = content_header({"x-death": [{"queue": "q"}], "x-replayed": (1 << 63) - 1})
    death = death_of(header)
    assert death is not None
    assert decode_properties(revived(header, death, death.published)).headers["x-replayed"] == (1 << 63) - 1  # type: ignore[index]
