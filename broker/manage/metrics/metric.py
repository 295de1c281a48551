"""Metrics as values: what each is called, and how it is read from an object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from broker.core.statistics.message_counts import MessageCounts

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "Family",
    "Labelled",
    "Labels",
    "Metric",
    "Whole",
    "counter",
    "delivery_counters",
    "gauge",
]

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
Labels = tuple[tuple[str, str], ...]


class Labelled(Protocol):
    """An object at the moment of a scrape."""

    @property
    def labels(self) -> Labels:
        """The labels of each of its samples."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The counters of the whole broker, which do not fall when an object ends.

    Units: ``received_bytes`` and ``sent_bytes`` are those of all connections since the start.
    """

    messages: MessageCounts
    received_bytes: int
    sent_bytes: int


T = TypeVar("T", bound=Labelled)
Value = Callable[[T], "float | None"]
Total = Callable[[Whole], int]


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """One number of each object of a kind.

    Shapes: `name` is without the prefix. `total` reads the number of the whole broker, for a counter whose objects
        end: the sum over those that are left would fall.
    """

    name: str
    kind: str
    about: str
    value: Value[T]
    total: Total | None = None


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """Metrics that are asked for together. Shapes: `name` is RabbitMQ's, for /metrics/detailed?family=."""

    name: str
    metrics: tuple[Metric[T], ...]


def counter(name: str, about: str, value: Value[T], total: Total) -> Metric[T]:
    """Return a number that only grows."""
    return Metric(name, COUNTER, about, value, total)


def gauge(name: str, about: str, value: Value[T]) -> Metric[T]:
    """Return a number that may rise and fall."""
    return Metric(name, GAUGE, about, value)


class Counted(Labelled, Protocol):
    """An object that messages are delivered from or on."""

    @property
    def counts(self) -> MessageCounts:
        """Its messages since the start."""


C = TypeVar("C", bound=Counted)
DELIVERIES: Final = (
    ("get_ack", "Messages fetched with basic.get, with acknowledgement", attrgetter("get")),
    ("get", "Messages fetched with basic.get, without acknowledgement", attrgetter("get_no_ack")),
    ("messages_delivered_ack", "Messages delivered to consumers, with acknowledgement", attrgetter("deliver")),
    ("messages_delivered", "Messages delivered to consumers, without acknowledgement", attrgetter("deliver_no_ack")),
    (
        "messages_redelivered",
        "Messages delivered or fetched that had been delivered before",
        attrgetter("redeliver"),
    ),
    ("messages_acked", "Messages acknowledged", attrgetter("ack")),
    ("get_empty", "Calls of basic.get that found no message", attrgetter("get_empty")),
)


def delivery_counters(of: str) -> tuple[Metric[C], ...]:
    """Return the counters of what is delivered from a queue, or on a channel. Shapes: `of` begins their names."""
    return tuple([_delivery_counter(f"{of}_{name}_total", about, value) for name, about, value in DELIVERIES])


def _delivery_counter(name: str, about: str, value: Callable[[MessageCounts], int]) -> Metric[C]:
    return counter(name, about, lambda reading: value(reading.counts), lambda whole: value(whole.messages))
