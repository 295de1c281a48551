"""Describes a run: the load as a whole, and the share of each generator process."""

from __future__ import annotations

from dataclasses import dataclass

from broker.perf.peer import Address
from broker.perf.receiver import ReceiverPace
from broker.perf.sender import SenderPace
from broker.perf.spool import Material


@dataclass(frozen=True, slots=True)
class Load:
    """The messages to publish and consume, their source and destination, and the duration.

    Shapes: `queues` holds the queues of each consumer; `messages` and `deliveries` are the totals of all publishers and
    consumers, None for no limit; `copies` is the number of queues that a message reaches, None if unknown; `ready` is
    the number of messages that the queues held before the run; `unsent_bytes` is how much
    the kernel accepts from a publisher before it must send, 0 for its default.
    """

    address: Address
    material: Material
    producers: int
    queues: tuple[tuple[str, ...], ...]
    demand: ReceiverPace
    window: int = 0
    messages: int | None = None
    per_s: float | None = None
    prefetch: int = 0
    deliveries: int | None = None
    seconds: float | None = None
    interval_s: float = 1.0
    copies: int | None = 1
    ready: int = 0
    processes: int = 1
    unsent_bytes: int = 0

    def publish_shares(self) -> list[Share]:
        """Return the publishers of each publishing process."""
        return self._shares(self.producers, self.processes)

    def consume_shares(self) -> list[Share]:
        """Return the consumers of each consuming process; one process alone counts a given number of deliveries."""
        return self._shares(len(self.queues), 1 if self.deliveries is not None else self.processes)

    def pace(self, number: int) -> SenderPace:
        """Return how a publisher publishes."""
        messages = self.messages
        if messages is not None:
            messages = messages // self.producers + (number < messages % self.producers)
        return SenderPace(self.window, messages, self.per_s)

    def first_key(self, number: int) -> int:
        """Return the index of a publisher's first routing key; publishers begin at different keys."""
        return number * len(self.material.keys) // self.producers

    def stagger_s(self, number: int) -> float:
        """Return how much later than the first a publisher starts: they are spread over the period of a rate."""
        return number / self.producers / self.per_s if self.per_s else 0.0

    def _shares(self, count: int, processes: int) -> list[Share]:
        used = min(count, processes)
        return [Share(self, range(count * part // used, count * (part + 1) // used)) for part in range(used)]


@dataclass(frozen=True, slots=True)
class Share:
    """The publishers, or the consumers, that one process runs."""

    load: Load
    numbers: range
