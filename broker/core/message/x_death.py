"""Deaths: what the headers of a dead letter say about where and why its message died before.

`x-death` is an array of tables, one for each queue and reason, the latest in front. Publishers may send one too, so
whatever stands in it is met here, and what makes no sense is left out.
Source: RabbitMQ 4.3, mc:record_death/4 and rabbit_dead_letter:detect_cycles/3. It counts its own deaths
alone. That those of a publisher count on is 3.10's rule: clients publish a dead letter again with its headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from broker.amqp.deaths import X_DEATH

__all__ = ["COUNT_MAX", "Death", "is_cycle", "past_deaths", "past_queues", "record_death"]

Event = dict[str, Any]

COUNT_MAX: Final = (1 << 63) - 1  # what a table's long holds: a publisher may have sent a count as large


@dataclass(frozen=True, slots=True)
class Death:
    """The death of one message in one queue.

    Shapes: `reason` is rejected, expired, maxlen or delivery_limit; `exchange` and `keys` are those that it was
        published with, the routing key before those of its header CC; `expiration` is its own, whatever it died of.
    Units: `time_s` is since the epoch.
    """

    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    expiration: str | None
    time_s: int

    def event(self) -> Event:
        """Return the death as a table, its first of this kind."""
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

    The first death is written once, the last one each time. A death of a queue and reason that is known counts there
    and changes nothing else of it: time, exchange and keys stay those of the first.
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
    """Return the deaths that headers tell of, the latest in front."""
    events = headers.get(X_DEATH)
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def kind_of(event: Event) -> str:
    """Return what two deaths of one queue and reason have in common, whatever a publisher has put in their place."""
    return repr((event.get("queue"), event.get("reason")))


def count_again(event: Event) -> Event:
    """Return an event that happened once more."""
    count = event.get("count")
    number = count if isinstance(count, int) and not isinstance(count, bool) else 0
    return {**event, "count": min(number + 1, COUNT_MAX)}


def is_cycle(queue: str, events: Sequence[Event]) -> bool:
    """Return whether a dead letter with these deaths must not enter the queue.

    It died there before and, since then, of nothing but the broker's own rules: it would go round for ever. A rejection
    ends that, because then a consumer wanted it so.
    """
    for event in events:
        if event.get("reason") == "rejected":
            return False
        if event.get("queue") == queue:
            return True
    return False


def past_queues(events: Sequence[Event]) -> list[str]:
    """Return the queues it died in, the latest in front."""
    return [event["queue"] for event in events if isinstance(event.get("queue"), str)]
