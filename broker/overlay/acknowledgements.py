"""The positions up to which leaves have acknowledged a stream, and streams whose acknowledgements make no progress."""

from __future__ import annotations

from collections.abc import Iterable

from broker.overlay.packets import Space


class Acknowledgements:
    """The positions of leaves in one stream: each has all numbers up to its position.

    A position only grows, and only by an ack that counts for the leaf. A leaf without a position counts as 0, so
    nothing of the stream is dropped before it has acknowledged something.
    """

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of leaves that have acknowledged something."""
        return len(self._positions)

    def credit(self, leaves: Iterable[str], number: int) -> None:
        """Raise the positions of these leaves to a number. Cost: O(leaves)."""
        positions = self._positions
        for leaf in leaves:
            if positions.get(leaf, 0) < number:
                positions[leaf] = number

    def position(self, leaf: str) -> int:
        """Return the position of a leaf, 0 if it has acknowledged nothing."""
        return self._positions.get(leaf, 0)

    def least(self, leaves: Iterable[str]) -> int | None:
        """Return the lowest position of these leaves, None without leaves. Cost: O(leaves)."""
        positions = self._positions
        return min((positions.get(leaf, 0) for leaf in leaves), default=None)

    def retain(self, leaves: frozenset[str]) -> None:
        """Drop the positions of all other leaves."""
        self._positions = {leaf: number for leaf, number in self._positions.items() if leaf in leaves}


class LagWatch:
    """Reports streams whose acks have made no progress for `stall_ms`, and again after each further `tip_ms`."""

    def __init__(self, stall_ms: int, tip_ms: int) -> None:
        self._stall_ms = stall_ms
        self._tip_ms = tip_ms
        self._due: dict[Space, tuple[int, int]] = {}  # the first number that is not acknowledged, and when to report it

    def stands(self, space: Space, needed: int, sent: int, now_ms: int) -> bool:
        """Return whether to report a stream as stuck. `needed` is the first number that a leaf lacks."""
        if needed > sent:
            self._due.pop(space, None)
            return False
        known, due_ms = self._due.get(space, (0, 0))
        if known != needed:
            self._due[space] = (needed, now_ms + self._stall_ms)
            return False
        if now_ms < due_ms:
            return False
        self._due[space] = (needed, now_ms + self._tip_ms)
        return True

    def forget(self, space: Space) -> None:
        """Drop a stream that no leaf needs any more."""
        self._due.pop(space, None)
