"""Simulated time, events in their order, and the randomness that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Dice(Protocol):
    """The random choices of a simulation."""

    def random(self) -> float:
        """Return a number from 0 up to, not including, 1."""
        ...

    def randint(self, a: int, b: int) -> int:
        """Return a whole number from `a` to `b`."""
        ...

    def choice(self, seq: Sequence[Item]) -> Item:
        """Return one of the items."""
        ...


class Scheduler:
    """Runs what is due, in the order of time and then of scheduling."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.count = 0
        self._sequence = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run an action after a delay."""
        self._sequence += 1
        heappush(self._events, (self.now_ms + delay_ms, self._sequence, action))

    def run_until(self, end_ms: int) -> None:
        """Run all events up to a time."""
        events = self._events
        while events and events[0][0] <= end_ms:
            self.now_ms, _, action = heappop(events)
            self.count += 1
            action()
        self.now_ms = max(self.now_ms, end_ms)

    def run_all(self) -> None:
        """Run events until none is left."""
        events = self._events
        while events:
            self.run_until(events[0][0])
