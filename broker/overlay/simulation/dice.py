"""Randomness that is passed in; `random.Random` with a seed fits."""

from __future__ import annotations

from collections.abc import Sequence
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
