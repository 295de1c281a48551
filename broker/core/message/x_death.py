"""Deaths: the headers of a dead letter that say where and why its message died.

`x-death` is an array of tables, one for each queue and reason, the latest first. Publishers may send one too, so it may
contain anything; meaningless entries are left out.
Source: RabbitMQ 4.3, mc:record_death/4 and rabbit_dead_letter:detect_cycles/3. RabbitMQ 4.3 counts only its own deaths.
    Here those in a publisher's header count too, as in 3.10, because clients publish a dead letter again with its
    headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from broker.amqp.deaths import X_DEATH

Event = dict[str, Any]

COUNT_MAX: Final = (1 << 63) - 1  # the largest long of a table: a publisher may have sent such a count


@dataclass(frozen=True, slots=True)
class Death:
    """The death of one message in one queue.

    Shapes: `reason` is rejected, expired, maxlen or delivery_limit. `exchange` and `keys` are those of the publish, the
        routing key before those of the header CC. `expiration` is the message's own, whatever the reason.
    Units: `time_s` is since the epoch.
    """

    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    expiration: str | None
    time_s: int

    def event(self) -> Event:
        """Return the death as a table, counted once."""
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

    The first death is written once, the last one every time. Another death in the same queue for the same reason only
    raises the count: time, exchange and keys stay those of the first.
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
    """Return a key shared by deaths with the same queue and reason, whatever values a publisher sent."""
    return repr((event.get("queue"), event.get("reason")))


def count_again(event: Event) -> Event:
    """Return an event with its count raised by one."""
    count = event.get("count")
    number = count if isinstance(count, int) and not isinstance(count, bool) else 0
    return {**event, "count": min(number + 1, COUNT_MAX)}


def is_cycle(queue: str, events: Sequence[Event]) -> bool:
    """Return whether a dead letter with these deaths must not enter the queue.

    That is, it died there before and has since died only by the broker's own rules, so it would cycle forever. A
    rejection breaks the cycle, because a consumer asked for it.
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
