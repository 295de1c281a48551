"""The queues whose consumers will have room again soon; publishers wait for them, 4 ms at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.deadlines import Clock, Deadlines
from broker.core.publish_credit import SHARE_ENTRIES
from broker.core.queue.queue import Queue

BUSY_MESSAGES: Final = 256  # a queue is tracked after a turn with this many deliveries, until a wait has fewer
WAIT_MS: Final = 4  # the length of one wait


class _Demand:
    """The demand of a queue's consumers, and the shortest length of the queue since the demand became high.

    Units: messages; ``taken`` counts the deliveries since the current wait began.
    """

    __slots__ = ("lowest", "taken")

    def __init__(self, length: int) -> None:
        self.lowest = length
        self.taken = 0

    def deliver(self, taken: int) -> None:
        """Count delivered messages."""
        self.taken += taken

    def growth(self, length: int) -> int:
        """Return by how much the queue is longer than its shortest length."""
        self.lowest = min(self.lowest, length)
        return length - self.lowest

    def continues(self) -> bool:
        """Begin another wait if enough was delivered in this one, and return whether it begins."""
        enough, self.taken = self.taken >= BUSY_MESSAGES, 0
        return enough


class AwaitedQueues:
    """Track the queues that grow although their consumers take many messages. A consumer that has used up its prefetch
    has no room until its acks arrive, and these arrive while publishes are handled. If publishers did not wait for
    the acks, the queue would grow although its consumers are fast enough. Slow consumers are not awaited. Shapes:
    ``_demands`` maps each tracked queue to its consumers' demand; ``lagging`` are the tracked queues that grew.
    """

    def __init__(self, deadlines: Deadlines, clock: Clock, schedule: Callable[[], None]) -> None:
        """`schedule` is called at the end of a wait, because a turn of the workers must follow."""
        self._deadlines = deadlines
        self._clock = clock
        self._schedule = schedule
        self._demands: dict[Queue, _Demand] = {}
        self.lagging: set[Queue] = set()

    def note(self, queue: Queue, length: int, taken: int) -> bool:
        """Record `taken` deliveries from a queue that is not empty, and return whether it lags and is awaited."""
        demand = self._demands.get(queue)
        if demand is not None:
            demand.deliver(taken)
        elif taken < BUSY_MESSAGES:
            return False
        else:
            if not self._demands:
                self._begin()
            demand = self._demands[queue] = _Demand(length)
        if demand.growth(length) > SHARE_ENTRIES // len(self._demands):
            self.lagging.add(queue)
            return True
        self.lagging.discard(queue)
        return False

    def caught_up(self, queue: Queue) -> None:
        """Record that a queue has no ready messages."""
        self.lagging.discard(queue)

    def _begin(self) -> None:
        self._deadlines.set(self, self._clock.now_ms + WAIT_MS, self._end)

    def _end(self) -> None:
        """End a wait, and begin another one for the queues from which enough was delivered."""
        for queue, demand in list(self._demands.items()):
            if demand.continues():
                continue
            del self._demands[queue]
            self.lagging.discard(queue)
            if not queue.awake:
                queue.lags = False  # hot: set directly
        if self._demands:
            self._begin()
        self._schedule()
