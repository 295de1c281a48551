"""The age of the message at the head of a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from broker.amqp.errors import BrokerError

if TYPE_CHECKING:
    from broker.core.queue.level import Level
    from broker.core.queue.queue import Queue
    from broker.slots.slot import Slot

__all__ = ["HeadTimes"]


class HeadTime(NamedTuple):
    """When the first ready message of a level arrived. Shapes: `message_id` is the broker's own."""

    message_id: int
    timestamp_ms: int


class HeadTimes:
    """Remembers when the heads of queues arrived, so that one on disk is read once and not at every look.

    Invariant: there is an entry for a level only if the last look found its head on disk.
    """

    def __init__(self) -> None:
        self._on_disk: dict[Level, HeadTime] = {}

    async def oldest_ms(self, queue: Queue) -> int | None:
        """Return when the oldest head of the queue's levels arrived; None without a ready message here, or unread.

        Cost: O(levels), and one read for a head on disk that was not read before.
        """
        found = [await self._arrived_ms(level) for level in queue.levels]
        return min((at_ms for at_ms in found if at_ms is not None), default=None)

    def keep(self, queues: set[Queue]) -> None:
        """Forget the heads of all other queues."""
        levels = {level for queue in queues for level in queue.levels}
        self._on_disk = {level: head for level, head in self._on_disk.items() if level in levels}

    async def _arrived_ms(self, level: Level) -> int | None:
        slot = level.manager.front()
        if slot is None:
            self._on_disk.pop(level, None)
            return None
        index = slot.front(1)[0]
        if slot.contents is not None:
            self._on_disk.pop(level, None)
            message = slot.contents[index]
            return None if message is None else int(message.timestamp_ms)
        known = self._on_disk.get(level)
        if known is not None and known.message_id == slot.first + index:
            return known.timestamp_ms
        at_ms = await _read_ms(level, slot, index)
        if at_ms is not None:
            self._on_disk[level] = HeadTime(slot.first + index, at_ms)
        return at_ms


async def _read_ms(level: Level, slot: Slot, index: int) -> int | None:
    store, segments = level.store, tuple(slot.segments)
    for segment in segments:
        store.add_live(segment, 1)  # keep the files until they are read, even if the slot is deleted
    try:
        stored = await asyncio.to_thread(store.read_slot, level.number, slot.first, slot.end, [index], segments)
    except BrokerError:  # damage is reported when the message is delivered
        return None
    finally:
        for segment in segments:
            store.drop_live(segment, 1)
    message = stored[index]
    return None if message is None else message.timestamp_ms
