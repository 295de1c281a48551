"""Dead letters: what their headers say about where and why they died, and how they go back where they came from."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from broker.amqp.content_header import PROPERTIES_AT
from broker.amqp.errors import BrokerError
from broker.amqp.header_edit import edit_header, read_headers, read_text

__all__ = ["REPLAYED", "REPLAYED_QUEUE", "REPLAYED_REASON", "Death", "death_of", "revived"]

X_DEATH: Final = "x-death"
FIRST_QUEUE, FIRST_REASON = "x-first-death-queue", "x-first-death-reason"
OF_DEATHS: Final = (
    X_DEATH, FIRST_QUEUE, FIRST_REASON, "x-first-death-exchange",
    "x-last-death-queue", "x-last-death-reason", "x-last-death-exchange",
)  # fmt: skip
REPLAYED: Final = "x-replayed"
"""The header of a message that was replayed: how often, by now."""
REPLAYED_QUEUE, REPLAYED_REASON = "x-replayed-queue", "x-replayed-reason"
FRONT: Final = bytes(PROPERTIES_AT)


@dataclass(frozen=True, slots=True)
class Death:
    """Is what a dead letter says.

    Shapes: `queue` and `reason` are those of its latest death, `count` how often it died so; `exchange` and `key` are
        where it was published before its first death, `first_queue` where it died first; `replayed` is how often it was
        replayed.
    Units: `time_s` is since the epoch, None where it is not told.
    """

    reason: str
    queue: str
    count: int
    time_s: int | None
    exchange: str
    key: str
    first_queue: str
    replayed: int
    expiration: str | None


def death_of(properties: bytes | None) -> Death | None:
    """Returns the death that encoded properties tell of, None for a message that has not died.

    Publishers may send such headers too, so whatever stands in them is met here.
    """
    if not properties:
        return None
    header = FRONT + properties
    try:
        found = read_headers(header, X_DEATH, FIRST_QUEUE, FIRST_REASON, REPLAYED)
        expiration = read_text(header, "expiration")
    except (BrokerError, IndexError, ValueError, struct.error):
        return None
    deaths = found.get(X_DEATH)
    events = [event for event in deaths if isinstance(event, dict)] if isinstance(deaths, list) else []
    if not events:
        return None
    latest = events[0]
    kind = (found.get(FIRST_QUEUE), found.get(FIRST_REASON))
    first = next((event for event in events if (event.get("queue"), event.get("reason")) == kind), events[-1])
    keys = first.get("routing-keys")
    time = latest.get("time")
    original = first.get("original-expiration")
    return Death(
        reason=_text(latest, "reason"),
        queue=_text(latest, "queue"),
        count=_number(latest.get("count"), 1),
        time_s=int(time.timestamp()) if isinstance(time, datetime) else None,
        exchange=_text(first, "exchange"),
        key=next((key for key in keys if isinstance(key, str)), "") if isinstance(keys, list) else "",
        first_queue=_text(first, "queue"),
        replayed=_number(found.get(REPLAYED), 0),
        expiration=original if expiration is None and isinstance(original, str) else None,
    )


def revived(properties: bytes, death: Death, *, alone: bool = False) -> bytes:
    """Returns properties for a message that goes back: without its deaths, with the expiration that it had, and marked.

    With `alone` it has no further keys in CC either: it goes to one queue.
    """
    dropped = (*OF_DEATHS, "CC") if alone else OF_DEATHS
    marks: dict[str, Any] = {
        REPLAYED: death.replayed + 1,
        REPLAYED_QUEUE: death.queue,
        REPLAYED_REASON: death.reason,
    }
    restored = {} if death.expiration is None else {"expiration": death.expiration}
    header = edit_header(FRONT + properties, set_headers=marks, drop_headers=dropped, set_properties=restored)
    return header[PROPERTIES_AT:]


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
