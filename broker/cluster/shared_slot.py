"""Slots of the database as a node sees them: which of their messages it has leased, returned or settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bitarray import bitarray

from broker.slots.slot import Slot

INDEX_BITS: Final = 20  # of an id; the number has at most 33, because JavaScript's integers have 53
NEVER: Final = (0, 0)
KEPT_S: Final = 2.0  # PostgreSQL writes an asynchronous commit within three times wal_writer_delay, 0.6 s by default

Counts = tuple[int, int]
"""The number of returns of a message, and of those that count towards the delivery limit."""


class SharedSlot:
    """A slot of the database with messages leased to this node. Shapes: ``number`` is 0 until the call that creates the
    slot is answered. ``delivered`` is set unless a move has leased the messages.
    """

    __slots__ = ("count", "delivered", "level", "number")

    def __init__(self, level: int, number: int, count: int, *, delivered: bool = True) -> None:
        self.level = level
        self.number = number
        self.count = count
        self.delivered = delivered

    @property
    def place(self) -> tuple[int, int]:
        """Its level and number, the order in which rows are locked."""
        return self.level, self.number

    def grow(self, count: int) -> None:
        """Add messages to a slot of the current batch."""
        self.count += count

    def numbered(self, number: int) -> None:
        self.number = number


class SlotPlace:
    """The messages of a shared slot that are in a local slot.

    Shapes: the message with the local id ``n`` has the index ``n + shift``; if ``indexes`` is not None, the message at
        place ``n`` of the local slot has the index ``indexes[n]``.
    """

    __slots__ = ("indexes", "shift", "slot")

    def __init__(self, slot: SharedSlot, shift: int, indexes: list[int] | None) -> None:
        self.slot = slot
        self.shift = shift
        self.indexes = indexes

    def indexes_of(self, slot: Slot, local: Sequence[int]) -> list[int]:
        """Return the indexes in the shared slot of messages in the local slot."""
        known = self.indexes
        if known is not None:
            return [known[index] for index in local]
        shift = self.shift + slot.first
        return [shift + index for index in local]


def message_id(number: int, index: int) -> int:
    """Return the id that operators see of a message in a shared slot."""
    return (number << INDEX_BITS) + index


class Returned:
    """Messages of a slot that become free again: `seen` may have been delivered; `counts` are `Counts` by index."""

    def __init__(self, slot: SharedSlot) -> None:
        self.slot = slot
        self.bits = bitarray(slot.count, "big")
        self.seen = bitarray(slot.count, "big")
        self.counts: dict[int, Counts] = {}

    def add(self, bits: bitarray, *, seen: bool) -> None:
        """Add messages; all of them may have been delivered if `seen`, otherwise none."""
        self.bits[: len(bits)] |= bits
        if seen:
            self.seen[: len(bits)] |= bits

    def retain_only(self, bits: bitarray | None) -> None:
        """Omit messages that are not in `bits`; None omits all."""
        if bits is None:
            self.bits.setall(0)
        else:
            self.bits &= bits


Settlement = tuple[SharedSlot, bitarray]


class UnsavedSettlements:
    """Keep a node's settlements until the database has them on disk, so that the node can repeat them after a crash.
    After a synchronous call, all calls answered before it are on disk, because PostgreSQL writes its log in order.
    """

    def __init__(self) -> None:
        self._older: list[Settlement] = []
        self._newer: list[Settlement] = []
        self._since_s = 0.0  # when the first of the newer settlements was added

    def __iter__(self) -> Iterator[Settlement]:
        yield from self._older
        yield from self._newer

    def add(self, settlements: list[Settlement], now_s: float) -> None:
        """Keep the settlements of an asynchronous call for at least `KEPT_S`."""
        if now_s - self._since_s >= KEPT_S:
            self._older, self._newer, self._since_s = self._newer, [], now_s
        self._newer += settlements

    def clear(self) -> None:
        """Discard all settlements, because they are on disk, or the epoch of this node has ended."""
        self._older.clear()
        self._newer.clear()
