"""The position that the broker has reached in a numbered stream. Pure."""

from __future__ import annotations

from typing import Any

from broker.core.publishing.sequences import BLOCK_SHIFT, Room, Sequences, block_of

__all__ = ["OwnSequence"]


class OwnSequence(Sequences):
    """The numbers that a producer of the broker itself has used: all up to ``highest``.

    Invariant: it never goes back, is never forgotten, and takes the memory of one block.
    """

    __slots__ = ("highest",)

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.highest = -1

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.highest

    def add(self, sequence: int, now_ms: int) -> bool:
        """Use a number and all below it, and return whether it is new."""
        if sequence <= self.highest:
            return False
        self.add_range(sequence, sequence + 1, now_ms)
        return True

    def add_range(self, first: int, end: int, now_ms: int) -> None:
        """Use all numbers below `end`."""
        if end - 1 > self.highest:
            self.highest = end - 1
            super().add_range(block_of(end - 1) << BLOCK_SHIFT, end, now_ms)
            self._drop_lower()

    def read(self, written: dict[str, Any]) -> None:
        """Take the block of a position that was written down."""
        super().read(written)
        base = int(written["block"]) << BLOCK_SHIFT
        self.highest = max(self.highest, base + int(written["end"]) - 1)
        self._drop_lower()

    def forget(self, before_ms: int) -> None:
        """Keep the position, however long it was not used."""

    def _drop_lower(self) -> None:
        for index in [index for index in self.blocks if index < block_of(self.highest)]:
            self._room.resize(-self.blocks.pop(index).size_bytes)
