"""The return lane of a quorum queue: the order in which returned messages are delivered, before all others.

Source: RabbitMQ 4.3, rabbit_fifo: a returned message does not go back to its level.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from broker.slots.slot import Slot, dense
from broker.slots.states import Tenure

__all__ = ["ReturnLane"]


class Returned:
    """Messages of one slot that came back one after another, `at` of which have left the lane."""

    __slots__ = ("at", "indexes", "priority", "slot")

    def __init__(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        self.priority = priority
        self.slot = slot
        self.indexes = indexes
        self.at = 0


class ReturnLane:
    """Orders the ready messages that came back. The slots hold them; the lane has their indexes.

    Invariant: a message that is no longer ready, because an operator or a limit took it, is passed over.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[Returned] = deque()

    def append(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Put messages of a slot of this level at the end; at least one."""
        entries = self._entries
        if entries:
            last = entries[-1]
            known = last.indexes
            are_dense = isinstance(known, range) and isinstance(indexes, range)
            if last.slot is slot and are_dense and known[-1] + 1 == indexes[0]:
                last.indexes = range(known[0], indexes[-1] + 1)
                return
        entries.append(Returned(priority, slot, indexes))

    def put_back(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Put messages that were taken but not sent back to the front; at least one."""
        self._entries.appendleft(Returned(priority, slot, indexes))

    def front(self) -> Returned | None:
        """Return where the next message is, None when no message is left."""
        entries = self._entries
        while entries:
            entry = entries[0]
            if entry.slot.tenure is not Tenure.DELETED:
                count = len(entry.indexes)
                while entry.at < count and not entry.slot.is_ready(entry.indexes[entry.at]):
                    entry.at += 1
                if entry.at < count:
                    return entry
            entries.popleft()
        return None

    def ready(self, limit: int) -> Sequence[int]:
        """Return up to `limit` messages that come next and are in one slot; `front` has found one."""
        entry = self._entries[0]
        slot, indexes = entry.slot, entry.indexes
        found: list[int] = []
        for place in range(entry.at, len(indexes)):
            if len(found) == limit:
                break
            if slot.is_ready(indexes[place]):
                found.append(indexes[place])
        return dense(found) if found else found

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove messages that `ready` returned, because they are taken; one that returns again goes to the end."""
        entry = self._entries[0]
        entry.at = bisect_right(entry.indexes, indexes[-1], entry.at)
        if entry.at == len(entry.indexes):
            self._entries.popleft()
