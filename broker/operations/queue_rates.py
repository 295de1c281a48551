"""Messages per second of each queue, from the difference of existing counters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue

__all__ = ["QueueCounters", "QueueRates", "Rates"]

Key = tuple[str, int]  # vhost, and the queue's number in its store

WINDOW_MIN_S: Final = 0.5
WINDOW_MAX_S: Final = 60.0
QUEUES_AT_ONCE: Final = 500  # queues that are read between two turns of the loop


class Rates(NamedTuple):
    """Messages per second: published, delivered, settled."""

    publish: float
    deliver: float
    ack: float


class QueueCounters(NamedTuple):
    """The counters of a queue at a moment; only differences have a meaning.

    Shapes: `delivered` counts messages that are no longer ready, `settled` those that were acked, delivered without
        acknowledgement, dropped, expired or purged.
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
    """Remembers the last reading of each queue, so that the next request gets the rate since then.

    The first request, one after more than a minute, and one for a new queue wait half a second for a second reading.
    """

    def __init__(self) -> None:
        self._seen: dict[Key, QueueCounters] = {}
        self._lock = asyncio.Lock()

    async def measure(self, queues: Mapping[Key, Queue]) -> dict[Key, Rates]:
        """Return the rates of queues. Cost: O(queues), in pieces."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            oldest_s = loop.time() - WINDOW_MAX_S
            if not all(key in self._seen and self._seen[key].at_s >= oldest_s for key in queues):
                await self._look(queues)
            before = self._seen
            last_s = max((counters.at_s for counters in before.values()), default=loop.time())
            await asyncio.sleep(max(0.0, last_s + WINDOW_MIN_S - loop.time()))
            await self._look(queues)
            rates: dict[Key, Rates] = {}
            for done, (key, counters) in enumerate(self._seen.items(), 1):
                rates[key] = counters.rates_since(before[key])
                if done % QUEUES_AT_ONCE == 0:
                    await asyncio.sleep(0)
            return rates

    async def _look(self, queues: Mapping[Key, Queue]) -> None:
        loop = asyncio.get_running_loop()
        found: dict[Key, QueueCounters] = {}
        for done, (key, queue) in enumerate(queues.items(), 1):
            found[key] = QueueCounters.of(queue, loop.time())
            if done % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._seen = found
