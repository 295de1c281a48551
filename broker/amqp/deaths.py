"""The dead-lettering history in a message's headers, and the header for publishing a dead letter again."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from broker.amqp.errors import BrokerError
from broker.amqp.header_edit import edit_header, read_headers, read_text
from broker.amqp.header_facts import parse_expiration
from broker.amqp.table_writer import LONG_MAX

X_DEATH: Final = "x-death"
FIRST_QUEUE, FIRST_REASON = "x-first-death-queue", "x-first-death-reason"
DEATH_HEADERS: Final = (
    X_DEATH, FIRST_QUEUE, FIRST_REASON, "x-first-death-exchange",
    "x-last-death-queue", "x-last-death-reason", "x-last-death-exchange",
)  # fmt: skip
REPLAYED: Final = "x-replayed"
"""The header that counts how often a message was published again."""
REPLAYED_QUEUE, REPLAYED_REASON = "x-replayed-queue", "x-replayed-reason"


@dataclass(frozen=True, slots=True)
class Publish:
    """The publish by which a message reached the queue that dead-lettered it.

    Shapes: `keys` contains the routing key, then the keys of the header CC; `expiration` is the property that
        dead-lettering removed, or None.
    """

    exchange: str
    keys: tuple[str, ...]
    expiration: str | None

    @property
    def key(self) -> str:
        """The routing key."""
        return self.keys[0] if self.keys else ""


@dataclass(frozen=True, slots=True)
class PastDeath:
    """The latest death of a dead letter, from the first entry of x-death.

    Shapes: `count` is the number of deaths in `queue` for `reason`; `published` is the publish to that queue, and
        `first_published` the publish to the queue of the first death; `replayed` is the value of the header x-replayed.
    Units: `time_s` is in seconds since the epoch, or None if unknown.
    """

    reason: str
    queue: str
    count: int
    time_s: int | None
    published: Publish
    first_published: Publish
    replayed: int


def death_of(header: bytes) -> PastDeath | None:
    """Return the latest death in a measured content header, or None if it does not contain a readable one.

    The headers may have any content, because publishers can send them too.
    """
    try:
        found = read_headers(header, X_DEATH, FIRST_QUEUE, FIRST_REASON, REPLAYED)
        own = read_text(header, "expiration") if X_DEATH in found else None
    except (BrokerError, IndexError, ValueError, struct.error):
        return None
    deaths = found.get(X_DEATH)
    events = [event for event in deaths if isinstance(event, dict)] if isinstance(deaths, list) else []
    if not events:
        return None
    latest = events[0]
    kind = (found.get(FIRST_QUEUE), found.get(FIRST_REASON))
    first = next((event for event in events if (event.get("queue"), event.get("reason")) == kind), events[-1])
    time = latest.get("time")
    return PastDeath(
        reason=_text(latest, "reason"),
        queue=_text(latest, "queue"),
        count=_number(latest.get("count"), 1),
        time_s=int(time.timestamp()) if isinstance(time, datetime) else None,
        published=_publish(latest, own),
        first_published=_publish(first, own),
        replayed=_number(found.get(REPLAYED), 0),
    )


def revived(header: bytes, death: PastDeath, again: Publish, *, alone: bool = False) -> bytes:
    """Return the header for publishing a dead letter again: without its deaths, and with its original expiration.

    With `alone`, the header CC is dropped too, so that the message does not reach other queues.
    """
    dropped = (*DEATH_HEADERS, "CC") if alone else DEATH_HEADERS
    marks: dict[str, Any] = {
        REPLAYED: min(death.replayed + 1, LONG_MAX),
        REPLAYED_QUEUE: death.queue,
        REPLAYED_REASON: death.reason,
    }
    restored = {} if again.expiration is None else {"expiration": again.expiration}
    return edit_header(header, set_headers=marks, drop_headers=dropped, set_properties=restored)


def _publish(event: Mapping[str, Any], own_expiration: str | None) -> Publish:
    keys = event.get("routing-keys")
    found = [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
    original = event.get("original-expiration")
    expiration = original if own_expiration is None and _is_expiration(original) else None
    return Publish(_text(event, "exchange"), tuple(found), expiration)


def _is_expiration(value: Any) -> bool:
    try:
        return isinstance(value, str) and parse_expiration(value.encode()) >= 0
    except ValueError:
        return False


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
