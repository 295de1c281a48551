"""Describes a run: the load as a whole, and the share of each generator process."""

from __future__ import annotations

from dataclasses import dataclass

from broker.perf.peer import Address
from broker.perf.receiver import ReceiverPace
from broker.perf.sender import SenderPace
from broker.perf.spool import Material


@dataclass(frozen=True, slots=True)
class PublishShare:
    """The publishers of one process: the pace and the first routing key of each."""

    address: Address
    material: Material
    paces: tuple[SenderPace, ...]
    first_keys: tuple[int, ...]
    stagger_s: tuple[float, ...]  # spreads publishers of one rate over the period
    unsent_bytes: int = 0  # how much the kernel accepts before it must send, 0 for its default


@dataclass(frozen=True, slots=True)
class ConsumeShare:
    """The consumers of one process: the queues of each."""

    address: Address
    demand: ReceiverPace
    queues: tuple[tuple[str, ...], ...]
    prefetch: int
    limit: int | None  # for the first process, if the number of deliveries is given


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

    @property
    def consumers(self) -> int:
        """The number of consumers."""
        return len(self.queues)

    def publish_shares(self) -> list[PublishShare]:
        """Return the share of each publishing process."""
        count = self.producers
        paces = [self._pace(number) for number in range(count)]
        first = [number * len(self.material.keys) // count for number in range(count)]
        gap_s = 1 / self.per_s if self.per_s else 0.0
        stagger = [gap_s * number / count for number in range(count)]
        return [
            PublishShare(
                self.address, self.material, tuple(paces[at]), tuple(first[at]), tuple(stagger[at]), self.unsent_bytes
            )
            for at in _parts(count, self.processes)
        ]

    def consume_shares(self) -> list[ConsumeShare]:
        """Return the share of each consuming process; one process alone counts a given number of deliveries."""
        processes = 1 if self.deliveries is not None else self.processes
        return [
            ConsumeShare(self.address, self.demand, self.queues[at], self.prefetch, self.deliveries)
            for at in _parts(self.consumers, processes)
        ]

    def _pace(self, number: int) -> SenderPace:
        messages = self.messages
        if messages is not None:
            messages = messages // self.producers + (number < messages % self.producers)
        return SenderPace(self.window, messages, self.per_s)


def _parts(count: int, processes: int) -> list[slice]:
    """Return the slice of each process that gets a share."""
    used = min(count, processes)
    return [slice(count * part // used, count * (part + 1) // used) for part in range(used)]
