"""Deaths: the headers of a dead letter that state in which queue and why the message died.

`x-death` is an array of tables, one for each queue and reason, the latest first. A publisher may send this header too,
with any content; entries that are not tables are dropped.
Source: RabbitMQ 4.3, mc:record_death/4 and rabbit_dead_letter:detect_cycles/3. RabbitMQ 4.3 counts only its own deaths.
    This broker also counts those in a publisher's header, as 3.10 does: clients republish dead letters unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from broker.amqp.deaths import X_DEATH

Event = dict[str, Any]

COUNT_MAX: Final = (1 << 63) - 1  # the largest integer in a table; a publisher may have sent it


@dataclass(frozen=True, slots=True)
class Death:
    """The death of one message in one queue.

    Shapes: `reason` is rejected, expired, maxlen or delivery_limit. `exchange` and `keys` are those with which the
        message entered the queue, the keys of the header CC last. `expiration` is the message's own.
    Units: `time_s` is since the epoch.
    """

    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    expiration: str | None
    time_s: int

    def event(self) -> Event:
        """Return the death as a table with a count of 1."""
        event: Event = {
            "count": 1,
            "reason": self.reason,
            "queue": self.queue,
            "time": datetime.fromtimestamp(self.time_s, UTC),
            "exchange": self.exchange,
            "routing-keys": list(self.keys),
        }
        if self.expiration is not None:
            event["original-expiration"] = self.expiration
        return event


def record_death(headers: Mapping[str, Any], death: Death) -> dict[str, Any]:
    """Return the headers that a death sets.

    `x-first-death-*` is set by the first death only, `x-last-death-*` by each. Another death in the same queue for the
    same reason raises the count; time, exchange and keys remain those of the first.
    """
    latest = death.event()
    past = past_deaths(headers)
    kind = kind_of(latest)
    known = next((event for event in past if kind_of(event) == kind), None)
    changes = {
        X_DEATH: [
            latest if known is None else count_again(known),
            *(event for event in past if kind_of(event) != kind),
        ],
        "x-last-death-reason": death.reason,
        "x-last-death-queue": death.queue,
        "x-last-death-exchange": death.exchange,
    }
    if not past:
        changes["x-first-death-reason"] = death.reason
        changes["x-first-death-queue"] = death.queue
        changes["x-first-death-exchange"] = death.exchange
    return changes


def past_deaths(headers: Mapping[str, Any]) -> list[Event]:
    """Return the deaths in headers, the latest first."""
    events = headers.get(X_DEATH)
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def kind_of(event: Event) -> str:
    """Return a key that is equal for deaths with equal queue and reason, whatever types a publisher sent."""
    return repr((event.get("queue"), event.get("reason")))


def count_again(event: Event) -> Event:
    """Return an event with its count raised by one."""
    count = event.get("count")
    number = count if isinstance(count, int) and not isinstance(count, bool) else 0
    return {**event, "count": min(number + 1, COUNT_MAX)}


def is_cycle(queue: str, events: Sequence[Event]) -> bool:
    """Return whether a dead letter with these deaths, the latest first, would cycle forever if it entered the queue.

    It would if it died there, and neither that death nor a later one was a rejection by a consumer.
    """
    for event in events:
        if event.get("reason") == "rejected":
            return False
        if event.get("queue") == queue:
            return True
    return False


def past_queues(events: Sequence[Event]) -> list[str]:
    """Return the queues in which a message died, the latest first."""
    return [event["queue"] for event in events if isinstance(event.get("queue"), str)]
