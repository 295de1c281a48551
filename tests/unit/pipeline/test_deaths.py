"""Dead letters: what their headers say, and how they go back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.amqp.content_header import decode_properties
from broker.core.x_death import Death as RecordedDeath
from broker.core.x_death import record_death
from broker.pipeline.replay.deaths import death_of, revived
from tests.unit.pipeline.encoded import properties

FIRST = RecordedDeath("work", "rejected", "ex", ("k1", "cc"), "5000", 1_790_000_000)
SECOND = RecordedDeath("parking", "expired", "dlx", ("k1",), None, 1_790_000_100)


def died(headers: dict[str, Any], *deaths: RecordedDeath) -> dict[str, Any]:
    """Returns headers as the broker writes them."""
    for death in deaths:
        headers = {**headers, **record_death(headers, death)}
    return headers


def test_a_death_is_the_latest_and_its_origin_the_first() -> None:
    """Queue, reason and time of the latest; exchange and key that the publisher used; the expiration it had."""
    death = death_of(properties(died({"a": 1}, FIRST, SECOND)))
    assert death is not None
    assert (death.queue, death.reason, death.count, death.time_s) == ("parking", "expired", 1, 1_790_000_100)
    assert (death.first_queue, death.exchange, death.key, death.expiration) == ("work", "ex", "k1", "5000")
    again = death_of(properties(died({}, FIRST, SECOND, FIRST, FIRST)))
    assert again is not None
    assert (again.queue, again.count, again.exchange) == ("work", 3, "ex")


def test_a_message_goes_back_as_it_was_published_with_a_mark() -> None:
    """Without deaths, with its expiration and its own headers; a second time the mark counts."""
    dead = properties(died({"a": 1, "CC": ["cc"]}, FIRST), content_type="text/plain")
    death = death_of(dead)
    assert death is not None
    back = decode_properties(bytes(12) + revived(dead, death))
    assert (back.content_type, back.expiration) == ("text/plain", "5000")
    marked = {"x-replayed": 1, "x-replayed-queue": "work", "x-replayed-reason": "rejected"}
    assert back.headers == {"a": 1, "CC": ["cc"], **marked}
    alone = decode_properties(bytes(12) + revived(dead, death, alone=True))
    assert "CC" not in (alone.headers or {})
    assert back.headers is not None
    death = death_of(properties(died(dict(back.headers), FIRST)))
    assert death is not None
    assert death.replayed == 1
    assert decode_properties(bytes(12) + revived(dead, death)).headers["x-replayed"] == 2  # type: ignore[index]


def test_an_expiration_of_its_own_is_not_overwritten() -> None:
    """What the message has now counts."""
    death = death_of(properties(died({}, FIRST), expiration="7"))
    assert death is not None
    assert death.expiration is None


@pytest.mark.parametrize(
    "octets",
    [
        None,
        b"",
        b"\x00\x00",
        b"\xff\xff",
        b"\x20\x00\x00\x00\x00\x40\x07x-deathA",
        properties({"x-death": "no"}),
        properties({"x-death": []}),
        properties({"x-death": [1, 2]}),
    ],
)
def test_what_has_not_died_has_no_death(octets: bytes | None) -> None:
    """Nor has what is no properties at all."""
    assert death_of(octets) is None


def test_what_a_publisher_made_up_is_met() -> None:
    """Fields of other types are as if they were not there."""
    made_up = {"x-death": [{"queue": 3, "count": "many", "time": "now", "routing-keys": [1, "k"]}], "x-replayed": "x"}
    death = death_of(properties(made_up))
    assert death is not None
    assert (death.queue, death.count, death.time_s, death.key, death.replayed) == ("", 1, None, "k", 0)
    odd = death_of(properties({"x-death": [{"time": datetime(2026, 1, 1, tzinfo=UTC), "routing-keys": "k"}]}))
    assert odd is not None
    assert (odd.key, odd.reason) == ("", "")
