"""Measurements of queues: rates between two readings, the age of the oldest message, and the bytes of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.administration.slices import in_slices
from broker.amqp.errors import BrokerError
from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.delivery.queue_messages import messages_at
from broker.slots.slot import Slot

Key = tuple[str, int]  # vhost, and the queue's number in its store

WINDOW_MIN_S: Final = 0.5
WINDOW_MAX_S: Final = 60.0
QUEUES_AT_ONCE: Final = 500  # queues that are read between two turns of the loop


@dataclass(slots=True)
class QueueBytes:
    """The bytes of a queue's message bodies, without properties, as RabbitMQ counts them.

    They are exact for slots in memory, and estimated for slots on disk.
    Shapes: `messages` is the number of counted messages, `persistent_messages` of those that survive a restart, and
        `resident_messages` of those in memory. The other fields are numbers of bytes.
    """

    ready: int = 0
    unacked: int = 0
    persistent: int = 0
    resident: int = 0
    messages: int = 0
    persistent_messages: int = 0
    resident_messages: int = 0

    def count(self, queue: Queue) -> Iterator[int]:
        """Count one slot after another, and yield the length of each. Cost: O(messages in memory) + O(slots)."""
        for level in queue.all_levels:
            for slot in list(level.manager.slots.values()):
                self._count(slot, durable=queue.durable)
                yield slot.length

    def _count(self, slot: Slot, *, durable: bool) -> None:
        unsettled = slot.unsettled
        if not unsettled:
            return
        contents: Sequence[Message | None] | None = slot.contents
        if contents is None:
            whole = slot.body_bytes if slot.body_bytes >= 0 else max(slot.bytes - OVERHEAD_BYTES * slot.length, 0)
            total = whole * unsettled // slot.length
            ready = total * slot.ready // unsettled
            logged_count = max(unsettled - (slot.volatile.count() if slot.volatile is not None else 0), 0)
            persistent = total * logged_count // unsettled
        else:
            total = sum([len(message.body) for message in contents if message is not None])
            unacked = [contents[index] for index in slot.unacked()] if slot.ready < unsettled else []
            ready = total - sum([len(message.body) for message in unacked if message is not None])
            persistent, logged_count = total, unsettled
            if slot.mixed:
                logged = [len(message.body) for message in contents if message is not None and message.logged]
                persistent, logged_count = sum(logged), len(logged)
            self.resident += total
            self.resident_messages += unsettled
        self.messages += unsettled
        self.ready += ready
        self.unacked += total - ready
        if durable:
            self.persistent += persistent
            self.persistent_messages += logged_count


class Rates(NamedTuple):
    """Messages per second: published, delivered, settled."""

    publish: float
    deliver: float
    ack: float


class QueueCounters(NamedTuple):
    """The counters of a queue at one time; only the differences between two readings are meaningful.

    Shapes: `delivered` counts the messages that are no longer ready, `settled` those that have left the queue.
    """

    at_s: float
    published: int
    delivered: int
    settled: int

    @classmethod
    def of(cls, queue: Queue, at_s: float) -> QueueCounters:
        """Return the counters of a queue. Cost: O(levels)."""
        published = sum([level.manager.next_id - 1 for level in queue.levels])
        ready, unacked = queue.ready, queue.unacked
        return cls(at_s, published, published - ready, published - ready - unacked)

    def rates_since(self, before: QueueCounters) -> Rates:
        """Return the rates between two readings; requeued messages reduce the delivery rate."""
        window_s = self.at_s - before.at_s
        counts = (self.published - before.published, self.delivered - before.delivered, self.settled - before.settled)
        return Rates(*(round(max(count, 0) / window_s, 1) if window_s > 0 else 0.0 for count in counts))


class QueueRates:
    """Measure rates of queues between two readings that are at least half a second apart.

    The first reading is that of the previous request, unless that reading is older than a minute or lacks a queue.
    """

    def __init__(self) -> None:
        self._last: dict[Key, QueueCounters] = {}
        self._lock = asyncio.Lock()

    async def measure(self, queues: Mapping[Key, Queue]) -> dict[Key, Rates]:
        """Return the rates of queues. Cost: O(queues), in slices."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            oldest_s = loop.time() - WINDOW_MAX_S
            if not all(key in self._last and self._last[key].at_s >= oldest_s for key in queues):
                await self._read(queues)
            before = self._last
            last_s = max((counters.at_s for counters in before.values()), default=loop.time())
            await asyncio.sleep(max(0.0, last_s + WINDOW_MIN_S - loop.time()))
            await self._read(queues)
            rates: dict[Key, Rates] = {}
            async for key, counters in in_slices(self._last.items(), QUEUES_AT_ONCE):
                rates[key] = counters.rates_since(before[key])
            return rates

    async def _read(self, queues: Mapping[Key, Queue]) -> None:
        loop = asyncio.get_running_loop()
        found: dict[Key, QueueCounters] = {}
        async for key, queue in in_slices(queues.items(), QUEUES_AT_ONCE):
            found[key] = QueueCounters.of(queue, loop.time())
        self._last = found


class HeadTime(NamedTuple):
    """The id of the first ready message of a level, and when the message arrived."""

    message_id: int
    timestamp_ms: int


class HeadTimes:
    """The arrival times of the first ready messages of queues. The time of a message on disk is cached.

    Invariant: a level has an entry only if its first message was on disk at the last reading.
    """

    def __init__(self) -> None:
        self._on_disk: dict[Level, HeadTime] = {}

    async def oldest_ms(self, queue: Queue) -> int | None:
        """Return when the oldest ready message arrived, or None if this node has none or cannot read it.

        Cost: O(levels), and a read for each first message that is on disk and not cached.
        """
        found = [await self._arrived_ms(level) for level in queue.levels]
        return min((at_ms for at_ms in found if at_ms is not None), default=None)

    def retain_only(self, queues: set[Queue]) -> None:
        """Remove the entries of all other queues."""
        levels = {level for queue in queues for level in queue.levels}
        self._on_disk = {level: head for level, head in self._on_disk.items() if level in levels}

    async def _arrived_ms(self, level: Level) -> int | None:
        slot = level.manager.front()
        if slot is None:
            self._on_disk.pop(level, None)
            return None
        index = slot.front(1)[0]
        resident = slot.resident
        if resident:
            self._on_disk.pop(level, None)
        known = self._on_disk.get(level)
        if known is not None and known.message_id == slot.first + index:
            return known.timestamp_ms
        try:
            message = (await messages_at(level, slot, [index]))[index]
        except BrokerError:  # a delivery will report the damage
            return None
        if message is None:
            return None
        if not resident:
            self._on_disk[level] = HeadTime(slot.first + index, message.timestamp_ms)
        return message.timestamp_ms
