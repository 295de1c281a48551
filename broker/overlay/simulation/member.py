"""A simulated broker: it connects a real leaf or inner broker to simulated links and simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol, TypeVar

from broker.overlay.inner import Inner
from broker.overlay.leaf import Leaf
from broker.overlay.packets import NO_LIMIT, Packet

Item = TypeVar("Item")


class Dice(Protocol):
    """The random choices of a simulation."""

    def random(self) -> float:
        """Return a number from 0 up to, not including, 1."""

    def randint(self, a: int, b: int) -> int:
        """Return a whole number from `a` to `b`."""

    def choice(self, seq: Sequence[Item]) -> Item:
        """Return one of the items."""


class Scheduler:
    """Run actions at their simulated times, and those of equal time in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.count = 0
        self._sequence = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._events, (self.now_ms + delay_ms, self._sequence, action))

    def run_until(self, end_ms: int) -> None:
        events = self._events
        while events and events[0][0] <= end_ms:
            self.now_ms, _, action = heappop(events)
            self.count += 1
            action()
        self.now_ms = max(self.now_ms, end_ms)

    def run_all(self) -> None:
        events = self._events
        while events:
            self.run_until(events[0][0])


class SimulatedBroker:
    """One logical broker of the tree. While `broker` is None, it has crashed.

    After each event its output is sent over the links, then `after_event` is called. The broker accepts messages of at
    most `limit_bytes`.
    """

    def __init__(self, name: str, node: str, scheduler: Scheduler) -> None:
        self.name = name
        self.node = node
        self.senders: dict[str, Callable[[str, Packet], None]] = {}
        self.broker: Leaf | Inner | None = None
        self.limit_bytes = NO_LIMIT
        self.after_event: Callable[[], None] = lambda: None
        self._scheduler = scheduler
        self._again = False

    @property
    def is_running(self) -> bool:
        """Whether the broker has not crashed."""
        return self.broker is not None

    def crash(self) -> None:
        self.broker = None

    def connected(self, peer: SimulatedBroker, session: int) -> None:
        if self.broker is not None:
            self.broker.connected(peer.node, peer.name, session, self._scheduler.now_ms, peer.limit_bytes)
            self.poll()

    def lost(self, peer: SimulatedBroker) -> None:
        if self.broker is not None:
            self.broker.lost(peer.node, peer.name, self._scheduler.now_ms)
            self.poll()

    def received(self, peer: SimulatedBroker, packet: Packet) -> None:
        if self.broker is not None:
            self.broker.received(peer.node, peer.name, packet, self._scheduler.now_ms)
            self.poll_soon()

    def tick(self) -> None:
        if self.broker is not None:
            self.broker.tick(self._scheduler.now_ms)
            self.poll()

    def poll(self) -> None:
        """Send the broker's output."""
        if self.broker is not None:
            for _, name, packet in self.broker.take_output(self._scheduler.now_ms):
                self.senders[name](self.name, packet)
            self.after_event()

    def poll_soon(self) -> None:
        """Poll after all packets of this millisecond were received."""
        if not self._again:
            self._again = True
            self._scheduler.after(0, self._poll_again)

    def _poll_again(self) -> None:
        self._again = False
        self.poll()
