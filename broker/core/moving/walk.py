"""A walk over the ready messages of a queue, for code that removes some of them and is not a consumer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.slots.slot import Slot
from broker.slots.states import Tenure


class _Stretch:
    """The part of one level that is still to be visited.

    Shapes: `slots` has the next slot at its end; ids go up to, not including, `end`.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self.slots = list(reversed(level.manager.slots.values()))
        self.next_id = 0
        self.end = level.manager.next_id

    def pass_by(self, message_id: int) -> None:
        """Continue after a message."""
        self.next_id = message_id + 1


class Walk:
    """Visit the messages that a queue holds when the walk begins, in the order of their delivery. The walk holds
    nothing: between two calls consumers, limits and expiry continue, and the walk skips what they removed. Messages
    that are published or requeued after the walk are not visited, so a walk ends even if its messages are put back.
    Cost: O(slots), and a scan of one slot's ready messages per call.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._stretches = [_Stretch(level) for level in queue.levels]

    def find(self) -> tuple[Level, Slot, Sequence[int]] | None:
        """Return the next slot that holds ready messages, with their indexes; None at the end of the walk.

        The slot may be on disk. The same messages are found again until `pass_by` names them.
        """
        while self._stretches and not self.queue.deleted:
            stretch = self._stretches[-1]
            while stretch.slots:
                slot = stretch.slots[-1]
                if slot.tenure is not Tenure.DELETED and slot.ready:
                    ready = slot.ready_indexes()
                    low = bisect_left(ready, stretch.next_id - slot.first)
                    indexes = ready[low : bisect_left(ready, stretch.end - slot.first)]
                    if indexes:
                        return stretch.level, slot, indexes
                stretch.slots.pop()
            self._stretches.pop()
        return None

    def pass_by(self, slot: Slot, index: int) -> None:
        """Continue after a message of the slot that was found last."""
        self._stretches[-1].pass_by(slot.first + index)

    def expired(self, message: Message, now_ms: int) -> bool:
        """Return whether a message that was found has expired and will be dropped once it is at the head."""
        return is_expired(self.queue, message, now_ms)


def is_expired(queue: Queue, message: Message, now_ms: int) -> bool:
    """Return whether a ready message of a queue has expired."""
    if not queue.timed:
        return False
    expires_ms = queue.expires_ms(message)
    return expires_ms is not None and expires_ms <= now_ms
