"""The virtual time of a leaf broker, and vectors of virtual times."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker.overlay.packets import Vector

NO_VECTOR: Final[Vector] = MappingProxyType({})
"""The vector before the first vector change of a stream."""

RESERVE: Final = 1024
"""How many ticks a leaf broker reserves at once, so that it need not persist every tick."""


class VirtualTime:
    """The clock of one leaf broker. It never returns to an earlier time of the leaf broker, even across crashes.
    `bound` must be persisted before anything with the current time leaves the broker. After a crash the clock begins
    above the persisted bound, at a random distance: the `incarnation`. This distinguishes two runs that begin with the
    same data folder, one of them with an older copy: a time above the persisted bound that this clock never had belongs
    to another run.
    Source: the Gryphon paper, section 3.3.
    """

    __slots__ = ("_incarnation", "_lived", "bound", "now", "recovered")

    def __init__(self, persisted_bound: int = 0, incarnation: int = 0) -> None:
        self.recovered = persisted_bound  # the times up to here belong to earlier runs
        self._incarnation = incarnation
        self._lived: list[tuple[int, int]] = []  # the first and last time of each range
        self.now = persisted_bound
        self._begin(persisted_bound)

    def advance(self) -> int:
        """End the current time, begin the next one, and return the time that has ended."""
        ended = self.now
        self.now += 1
        if self.now > self.bound:
            self.bound += RESERVE
        return ended

    def read(self, time: int) -> int | None:
        """Return a time that others have of this leaf if this clock had it, None if it belongs to another run."""
        if time <= self.recovered or self._lived[-1][0] <= time <= self.now:
            return time
        return time if any(first <= time <= last for first, last in self._lived[:-1]) else None

    def leave(self, time: int) -> None:
        """Continue above a time of another run, which others may take for the latest of this leaf."""
        self._lived[-1] = (self._lived[-1][0], self.now)
        self._begin(max(time, self.bound))

    def _begin(self, above: int) -> None:
        self.now = above + self._incarnation + 1
        self.bound = above + self._incarnation + RESERVE
        self._lived.append((self.now, self.now))
