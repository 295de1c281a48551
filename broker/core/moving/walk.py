"""Iterate over the ready messages of a queue on an operator's order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.slots.slot import Slot
from broker.slots.states import Tenure


class Walk:
    """Visit the messages that are in a queue when the walk begins, except delayed ones, by priority and then by age.

    The walk locks nothing: consumers, limits and expiry continue between two calls, and it skips messages that they
    removed. It does not visit messages that are added later, so it ends even if visited messages are added again.
    Shapes: ``_levels`` is a stack of the levels to visit, each with the first message id that is not visited and a
        stack of its slots. ``_next_id`` is the next message to visit in the last level.
    Cost: O(slots) for the whole walk; each call also lists the ready messages of the slots it examines, usually one.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._next_id = 0
        self._levels = [
            (level, level.manager.next_id, list(reversed(level.manager.slots.values()))) for level in queue.levels
        ]

    def find(self) -> tuple[Level, Slot, Sequence[int]] | None:
        """Return the next slot with ready messages, its level and their indexes, or None at the end of the walk.

        The slot may be on disk. Messages are returned again until `advance_past` is called with their indexes.
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
        """Continue after a message of the slot that `find` returned last."""
        self._next_id = slot.first + index + 1


def is_expired(queue: Queue, message: Message, now_ms: int) -> bool:
    """Return whether a ready message of a queue has expired; it is dropped once it is at the head."""
    if not queue.timed:
        return False
    expires_ms = queue.expires_ms(message)
    return expires_ms is not None and expires_ms <= now_ms
