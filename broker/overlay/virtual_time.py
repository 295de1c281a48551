"""The virtual time of a leaf broker, and vectors of virtual times."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker.overlay.packets import Vector

NO_VECTOR: Final[Vector] = MappingProxyType({})
"""The vector before the first vector change of a stream."""

RESERVE: Final = 1024
"""How many ticks a leaf broker reserves at once, so that it persists a bound and not every tick."""


class VirtualTime:
    """The clock of one leaf broker. It never returns to a time that the leaf broker had before, through crashes too.

    `bound` has to be persisted before anything that carries the current time leaves the broker. After a crash the clock
    begins behind the persisted bound.
    Source: the Gryphon paper, section 3.3.
    """

    __slots__ = ("bound", "now")

    def __init__(self, persisted_bound: int = 0) -> None:
        self.now = persisted_bound + 1
        self.bound = persisted_bound + RESERVE

    def advance(self) -> int:
        """End the current time, begin the next one, and return the time that has ended."""
        ended = self.now
        self.now += 1
        if self.now > self.bound:
            self.bound += RESERVE
        return ended


def reaches(vector: Vector, wanted: Vector) -> bool:
    """Return whether no element of a vector is smaller than the wanted one."""
    return all(vector.get(leaf, 0) >= time for leaf, time in wanted.items())


def later(vector: Vector, other: Vector) -> dict[str, int]:
    """Return the elementwise maximum of two vectors."""
    result = dict(vector)
    for leaf, time in other.items():
        if time > result.get(leaf, 0):
            result[leaf] = time
    return result
