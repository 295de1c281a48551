"""Metrics: their names, the functions that read their values, and their text in Prometheus's format 0.0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

from broker.core.statistics.vhost_tally import MessageCounts

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, "float | None"]
Read = TypeVar("Read")


class Labelled(Protocol):
    """An object at the time of a scrape."""

    @property
    def labels(self) -> Labels:
        """The labels of each of its samples."""


class Reading(Generic[Read]):
    """An object at the time of a scrape, with its labels."""

    __slots__ = ("labels", "of")

    def __init__(self, of: Read, *labels: tuple[str, str]) -> None:
        self.of = of
        self.labels: Labels = labels


@dataclass(frozen=True, slots=True)
class Whole:
    """Counters of the whole broker, which do not fall when an object is deleted or a connection ends.

    Units: `received_bytes` and `sent_bytes` are the bytes of all connections since startup.
    """

    messages: MessageCounts
    received_bytes: int
    sent_bytes: int


T = TypeVar("T", bound=Labelled)
Value = Callable[[T], "float | None"]
Total = Callable[[Whole], int]
Counts = Callable[["MessageCounts"], int]


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """A metric with one value for each object of a kind.

    Shapes: `name` has no prefix. `total` reads a counter of the whole broker, because the sum over the objects would
        fall when one of them ends.
    """

    name: str
    kind: str
    about: str
    value: Value[T]
    total: Total | None = None


class Family(Generic[T]):
    """Metrics that are requested together. Shapes: `name` selects them in /metrics/detailed?family=."""

    def __init__(self, name: str, *metrics: Metric[T]) -> None:
        self.name = name
        self.metrics = metrics


def counter(name: str, about: str, value: Value[T], total: Total | None = None) -> Metric[T]:
    """Return a metric that only grows."""
    return Metric(name, COUNTER, about, value, total)


def gauge(name: str, about: str, value: Value[T]) -> Metric[T]:
    """Return a metric that can rise and fall."""
    return Metric(name, GAUGE, about, value)


class Counted(Labelled, Protocol):
    """An object with message counters: a queue or a channel."""

    @property
    def counts(self) -> MessageCounts:
        """The message counters of the object."""


C = TypeVar("C", bound=Counted)
PUBLISHES: Final = (
    ("messages_published", "Messages published on a channel", attrgetter("publish")),
    ("messages_confirmed", "Messages published and confirmed", attrgetter("confirm")),
    ("messages_unroutable_returned", "Mandatory messages that were returned", attrgetter("return_unroutable")),
    ("messages_unroutable_dropped", "Messages that reached no queue", attrgetter("drop_unroutable")),
)
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


def message_counters(of: str, counted: Sequence[tuple[str, str, Counts]]) -> tuple[Metric[C], ...]:
    """Return message counters. Shapes: their names begin with `of`; `counted` is PUBLISHES or DELIVERIES."""
    return tuple([_message_counter(f"{of}_{name}_total", about, value) for name, about, value in counted])


def _message_counter(name: str, about: str, value: Counts) -> Metric[C]:
    return counter(name, about, lambda reading: value(reading.counts), lambda whole: value(whole.messages))


def head(name: str, kind: str, about: str) -> str:
    """Return the lines that introduce a metric. Shapes: `kind` is counter, gauge or histogram."""
    return f"# HELP {name} {about.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return the text of labels, which follows the name of a metric; it is empty without labels."""
    inner = ",".join([f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in labels])
    return f"{{{inner}}}" if inner else ""


def sample(name: str, labels: str, value: float | None) -> str:
    """Return the line of a sample; an unknown value is NaN. Shapes: `labels` is the result of `label_text`."""
    return f"{name}{labels} {'NaN' if value is None else value}\n"


def metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    """Return the text of a metric with its samples."""
    return head(name, kind, about) + "".join([sample(name, label_text(labels), value) for labels, value in samples])


def by(label: str, values: Iterable[tuple[str, float | None]]) -> list[Sample]:
    """Return samples that differ in one label."""
    return [(((label, name),), value) for name, value in values]


def histogram(
    name: str, about: str, bounds: Sequence[float], counts: Sequence[int], total: float, labels: Labels = ()
) -> str:
    """Return the text of a histogram. Shapes: `counts` has one number more than `bounds`, for larger values."""
    cumulative = 0
    lines = [head(name, HISTOGRAM, about)]
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        cumulative += count
        lines.append(sample(f"{name}_bucket", label_text((*labels, ("le", bound))), cumulative))
    text = label_text(labels)
    return "".join([*lines, sample(f"{name}_sum", text, total), sample(f"{name}_count", text, cumulative)])
