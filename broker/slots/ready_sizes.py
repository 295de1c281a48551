"""The bytes of a level's ready messages, which are counted while its queue has a limit in bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broker.slots.slot import Slot
from broker.slots.states import Tenure


class ReadySizes:
    """Count the bytes of the ready messages of one slot manager. Units: ``ready_bytes`` is the sum of the slots whose
    sizes are known; a slot that was on disk when counting began is left out until `learn` is called.
    """

    __slots__ = ("_size_of", "ready_bytes")

    def __init__(self, size_of: Callable[[Any], int]) -> None:
        """`size_of` returns the size of a message in bytes."""
        self._size_of = size_of
        self.ready_bytes = 0

    def measure(self, slot: Slot) -> bool:
        """Count the uncounted ready messages of a slot in memory; return False for a slot on disk."""
        slot.note_sizes(None)
        contents = slot.contents
        if contents is None:
            return False
        size_of = self._size_of
        self.learn(slot, [0 if content is None else size_of(content) for content in contents])
        return True

    def learn(self, slot: Slot, sizes: Iterable[int]) -> None:
        """Record the sizes of a slot's messages, and count the ready ones. Shapes: one size per message."""
        if slot.tenure is not Tenure.DELETED:
            self.subtract(slot, slot.ready_indexes())
            slot.note_sizes(array("L", sizes))
            self.add(slot, slot.ready_indexes())

    def append(self, slot: Slot, content: Any) -> None:
        """Count the newest message of the open slot."""
        sizes = slot.sizes
        if sizes is None:
            if slot.length > 1:
                return  # the sizes of the slot's older messages are not known yet
            sizes = array("L")
            slot.note_sizes(sizes)
        size_bytes = self._size_of(content)
        sizes.append(size_bytes)
        self.ready_bytes += size_bytes

    def add(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Count messages that are ready again."""
        self.ready_bytes += slot.size_of(indexes)

    def subtract(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Subtract messages that are no longer ready."""
        self.ready_bytes -= slot.size_of(indexes)

    def clear(self) -> None:
        """Reset the count: no message is ready."""
        self.ready_bytes = 0
