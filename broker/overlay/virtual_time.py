"""The virtual time of a leaf broker, and vectors of virtual times."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker.overlay.packets import Vector

NO_VECTOR: Final[Vector] = MappingProxyType({})
"""The vector before the first vector change of a stream."""

RESERVE: Final = 1024
"""How many virtual times a leaf broker reserves at once, so that it need not persist each one."""


class VirtualTime:
    """The virtual clock of one leaf broker. It never returns to an earlier time of the leaf, even after a crash.

    `bound` must be persisted before the broker sends anything with the current time. Each run starts above the
    persisted bound, at its own distance: the `incarnation`. So two runs that start with copies of one data folder can
    be distinguished: a time above the persisted bound that this clock never showed belongs to another run.
    Source: the Gryphon paper, section 3.3.
    """

    __slots__ = ("_incarnation", "_ranges", "bound", "now", "recovered")

    def __init__(self, persisted_bound: int = 0, incarnation: int = 0) -> None:
        self.recovered = persisted_bound  # the times up to here belong to earlier runs
        self._incarnation = incarnation
        self._ranges: list[tuple[int, int]] = []  # the first and last time of each range
        self.now = persisted_bound
        self._begin(persisted_bound)

    def advance(self) -> int:
        """Advance to the next time, and return the one that has ended."""
        ended = self.now
        self.now += 1
        if self.now > self.bound:
            self.bound += RESERVE
        return ended

    def recognize(self, time: int) -> int | None:
        """Return a time that another broker knows of this leaf, or None if it belongs to a run unknown to this one."""
        if time <= self.recovered or self._ranges[-1][0] <= time <= self.now:
            return time
        return time if any(first <= time <= last for first, last in self._ranges[:-1]) else None

    def skip_above(self, time: int) -> None:
        """Continue above a time of another run, which other brokers may consider the latest of this leaf."""
        self._ranges[-1] = (self._ranges[-1][0], self.now)
        self._begin(max(time, self.bound))

    def _begin(self, above: int) -> None:
        self.now = above + self._incarnation + 1
        self.bound = above + self._incarnation + RESERVE
        self._ranges.append((self.now, self.now))
