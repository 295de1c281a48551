"""Places: where the messages of a local slot are in the slots of the database, and those that go back there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bitarray import bitarray

from broker.cluster.batch import SharedSlot

if TYPE_CHECKING:
    from broker.slots.slot import Slot

__all__ = ["Returned", "SlotPlace", "message_id"]

INDEX_BITS: Final = 20  # a browser knows integers of 53 bits


def message_id(number: int, index: int) -> int:
    """Return the number by which an operator knows the message at an index of a shared slot."""
    return (number << INDEX_BITS) + index


class Returned:
    """Messages of one shared slot that go back to the free ones.

    Shapes: ``seen`` marks those that may have been delivered; ``counts`` are delivery counts by index.
    """

    __slots__ = ("bits", "counts", "seen", "slot")

    def __init__(self, slot: SharedSlot) -> None:
        self.slot = slot
        self.bits = bitarray(slot.count, "big")
        self.seen = bitarray(slot.count, "big")
        self.counts: dict[int, int] = {}


class SlotPlace:
    """Which messages of a shared slot a local slot has.

    Shapes: the message with the local id ``n`` has the index ``n + shift``; if ``indexes`` is not None, the message at
        place ``n`` of the local slot has the index ``indexes[n]``.
    """

    __slots__ = ("indexes", "shift", "slot")

    def __init__(self, slot: SharedSlot, shift: int, indexes: list[int] | None) -> None:
        self.slot = slot
        self.shift = shift
        self.indexes = indexes

    def indexes_of(self, slot: Slot, local: Sequence[int]) -> list[int]:
        """Return the indexes that messages of the local slot have in the shared one."""
        known = self.indexes
        if known is not None:
            return [known[index] for index in local]
        shift = self.shift + slot.first
        return [shift + index for index in local]
