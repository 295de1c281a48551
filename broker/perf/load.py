"""Says what a run does: the load as a whole, and the share of it that each of the generator's processes has."""

from __future__ import annotations

from dataclasses import dataclass

from broker.perf.peer import Address
from broker.perf.receiver import ReceiverPace
from broker.perf.sender import SenderPace
from broker.perf.spool import Material


@dataclass(frozen=True, slots=True)
class PublishShare:
    """The publishers of one process: a pace for each, and which key each begins with."""

    address: Address
    material: Material
    paces: tuple[SenderPace, ...]
    first_keys: tuple[int, ...]
    stagger_s: tuple[float, ...]  # so that publishers of one rate do not all send at once


@dataclass(frozen=True, slots=True)
class ConsumeShare:
    """The consumers of one process: the queues of each."""

    address: Address
    demand: ReceiverPace
    queues: tuple[tuple[str, ...], ...]
    prefetch: int
    limit: int | None  # for the first of them, where the number to consume is given


@dataclass(frozen=True, slots=True)
class Load:
    """What is published and consumed, from where to where, and for how long.

    Shapes: `queues` has those of each consumer; `messages` and `deliveries` are of all publishers and consumers
    together, None: no limit; `copies` says into how many queues a message goes, None: nobody knows; `ready` how many
    messages lay in the queues before.
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

    @property
    def consumers(self) -> int:
        """How many consumers there are."""
        return len(self.queues)

    def publish_shares(self) -> list[PublishShare]:
        """Return what each process of publishers does."""
        count = self.producers
        paces = [self._pace(number) for number in range(count)]
        first = [number * len(self.material.keys) // count for number in range(count)]
        gap_s = 1 / self.per_s if self.per_s else 0.0
        stagger = [gap_s * number / count for number in range(count)]
        return [
            PublishShare(self.address, self.material, tuple(paces[at]), tuple(first[at]), tuple(stagger[at]))
            for at in _parts(count, self.processes)
        ]

    def consume_shares(self) -> list[ConsumeShare]:
        """Return what each process of consumers does; a given number to consume is counted by one process alone."""
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
    """Return the share of each process that has one."""
    used = min(count, processes)
    return [slice(count * part // used, count * (part + 1) // used) for part in range(used)]
