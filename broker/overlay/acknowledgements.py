"""How far the leaves behind a broker have a stream."""

from __future__ import annotations

from collections.abc import Iterable


class Acknowledgements:
    """The positions of leaves in one stream: each has all numbers up to its position.

    A position only grows, and only when an ack that counts for the leaf arrives. Two acks never stand for a leaf that
    none of them counted, and a leaf without a position holds everything back.
    """

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of leaves that have acknowledged something."""
        return len(self._positions)

    def credit(self, leaves: Iterable[str], number: int) -> None:
        """Note that these leaves have the stream up to a number. Cost: the leaves."""
        positions = self._positions
        for leaf in leaves:
            if positions.get(leaf, 0) < number:
                positions[leaf] = number

    def position(self, leaf: str) -> int:
        """Return up to which number a leaf has the stream, 0 if nothing is known of it."""
        return self._positions.get(leaf, 0)

    def least(self, leaves: Iterable[str]) -> int | None:
        """Return up to which number all these leaves have the stream, None without leaves. Cost: the leaves."""
        positions = self._positions
        return min((positions.get(leaf, 0) for leaf in leaves), default=None)

    def retain(self, leaves: frozenset[str]) -> None:
        """Forget all other leaves."""
        self._positions = {leaf: number for leaf, number in self._positions.items() if leaf in leaves}
