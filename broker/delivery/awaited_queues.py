"""The queues whose consumers will soon have room again, for which publishers wait a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.deadlines import Clock, Deadlines
from broker.core.publish_credit import SHARE_ENTRIES
from broker.core.queue.queue import Queue

BUSY_MESSAGES: Final = 256  # delivered in a turn for a queue to be awaited; and in each wait for the next one
WAIT_MS: Final = 4  # the longest that publishers to an awaited queue wait


class _Demand:
    """The demand of a queue's consumers, and the shortest length of the queue since it became high.

    Units: messages; ``taken`` counts those delivered since the current wait began.
    """

    __slots__ = ("lowest", "taken")

    def __init__(self, left: int) -> None:
        self.lowest = left
        self.taken = 0

    def deliver(self, taken: int) -> None:
        """Count delivered messages."""
        self.taken += taken

    def grown(self, left: int) -> int:
        """Return by how much the queue is longer now than its shortest."""
        self.lowest = min(self.lowest, left)
        return left - self.lowest

    def continues(self) -> bool:
        """Return whether enough was delivered for another wait, which begins."""
        enough, self.taken = self.taken >= BUSY_MESSAGES, 0
        return enough


class AwaitedQueues:
    """Track the queues that grow although their consumers take many messages. A consumer that has used up its prefetch
    has no room until its acks arrive, which happens while publishes are handled. Publishers that do not wait for these
    acks add more than is delivered, although the consumers keep up. Slow consumers are not awaited. Shapes:
    ``_demands`` has the queues whose consumers take many messages; ``left`` has the lagging ones.
    """

    def __init__(self, deadlines: Deadlines, clock: Clock, schedule: Callable[[], None]) -> None:
        """`schedule` is called when a queue is no longer awaited, because a turn of the workers must follow."""
        self._deadlines = deadlines
        self._clock = clock
        self._schedule = schedule
        self._demands: dict[Queue, _Demand] = {}
        self.left: set[Queue] = set()

    def note(self, queue: Queue, left: int, taken: int) -> bool:
        """Record this many deliveries from a queue with messages left, and return whether it lags and is awaited."""
        demand = self._demands.get(queue)
        if demand is not None:
            demand.deliver(taken)
        elif taken < BUSY_MESSAGES:
            return False
        else:
            if not self._demands:
                self._begin()
            demand = self._demands[queue] = _Demand(left)
        if demand.grown(left) > SHARE_ENTRIES // len(self._demands):
            self.left.add(queue)
            return True
        self.left.discard(queue)
        return False

    def caught_up(self, queue: Queue) -> None:
        """Record that a queue has no messages left."""
        self.left.discard(queue)

    def _begin(self) -> None:
        self._deadlines.set(self, self._clock.now_ms + WAIT_MS, self._end)

    def _end(self) -> None:
        """End a wait, and begin another one for the queues from which enough was delivered."""
        for queue, demand in list(self._demands.items()):
            if demand.continues():
                continue
            del self._demands[queue]
            self.left.discard(queue)
            if not queue.awake:
                queue.lags = False  # hot: written here
        if self._demands:
            self._begin()
        self._schedule()
