"""A walk over the ready messages of a queue, for code that removes some of them and is not a consumer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.slots.slot import Slot
from broker.slots.states import Tenure


class Walk:
    """Visit the messages that a queue holds when the walk begins, in the order of their delivery. The walk holds
    nothing: between two calls consumers, limits and expiry continue, and the walk skips what they removed. Messages
    that are published or requeued after the walk are not visited, so a walk ends even if its messages are put back.
    Shapes: ``_levels`` are still to be visited, the next one at the end, each with the id at which its part ends, and
    its slots, the next one at the end; ``_next_id`` is the next message.
    Cost: O(slots), and a scan of one slot's ready messages per call.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._next_id = 0
        self._levels = [
            (level, level.manager.next_id, list(reversed(level.manager.slots.values()))) for level in queue.levels
        ]

    def find(self) -> tuple[Level, Slot, Sequence[int]] | None:
        """Return the next slot that holds ready messages, with their indexes; None at the end of the walk.

        The slot may be on disk. The same messages are found again until `advance_past` names them.
        """
        while self._levels and not self.queue.deleted:
            level, end, slots = self._levels[-1]
            while slots:
                slot = slots[-1]
                if slot.tenure is not Tenure.DELETED and slot.ready:
                    ready = slot.ready_indexes()
                    low = bisect_left(ready, self._next_id - slot.first)
                    indexes = ready[low : bisect_left(ready, end - slot.first)]
                    if indexes:
                        return level, slot, indexes
                slots.pop()
            self._levels.pop()
            self._next_id = 0
        return None

    def advance_past(self, slot: Slot, index: int) -> None:
        """Continue after a message of the slot that was found last."""
        self._next_id = slot.first + index + 1

    def expired(self, message: Message, now_ms: int) -> bool:
        """Return whether a message that was found has expired and will be dropped once it is at the head."""
        return is_expired(self.queue, message, now_ms)


def is_expired(queue: Queue, message: Message, now_ms: int) -> bool:
    """Return whether a ready message of a queue has expired."""
    if not queue.timed:
        return False
    expires_ms = queue.expires_ms(message)
    return expires_ms is not None and expires_ms <= now_ms
