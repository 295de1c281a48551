"""The queues whose consumers take much and will soon have room again: acks, or slots from disk, are on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.deadlines import Clock, Deadlines
    from broker.core.queue.queue import Queue

__all__ = ["BRISK_MESSAGES", "PATIENCE_MS", "AwaitedQueues"]

BRISK_MESSAGES: Final = 256  # in a turn, for a queue to be awaited; and in each wait, for the next one
PATIENCE_MS: Final = 4  # how long publishers to an awaited queue wait at most


class AwaitedQueues:
    """Notes the queues that were left with messages although their consumers took many.

    A consumer that has used up its prefetch has no room, and its acks arrive while publishes are handled. Publishers
    that do not wait for them add more than is delivered, although the consumers keep up. Slow ones are not awaited.
    Shapes: ``_taken`` has the queues whose consumers take much, with how many messages were delivered from each since
        the present wait began; ``left`` has those of them in which messages are left.
    """

    __slots__ = ("_clock", "_deadlines", "_schedule", "_taken", "left")

    def __init__(self, deadlines: Deadlines, clock: Clock, schedule: Callable[[], None]) -> None:
        """Call `schedule` when a queue is awaited no longer: a turn of the workers has to follow."""
        self._deadlines = deadlines
        self._clock = clock
        self._schedule = schedule
        self._taken: dict[Queue, int] = {}
        self.left: set[Queue] = set()

    def note(self, queue: Queue, taken: int) -> bool:
        """Return whether a queue with messages left is awaited, after this many were delivered from it."""
        if queue in self._taken:
            self._taken[queue] += taken
        elif taken < BRISK_MESSAGES:
            return False
        else:
            if not self._taken:
                self._begin()
            self._taken[queue] = 0
        self.left.add(queue)
        return True

    def caught_up(self, queue: Queue) -> None:
        """Note that no message is left in a queue."""
        self.left.discard(queue)

    def _begin(self) -> None:
        self._deadlines.set(self, self._clock.now_ms + PATIENCE_MS, self._end)

    def _end(self) -> None:
        """End a wait, and begin another one for the queues from which enough was delivered."""
        for queue, taken in list(self._taken.items()):
            if taken >= BRISK_MESSAGES and not queue.deleted:
                self._taken[queue] = 0
                continue
            del self._taken[queue]
            self.left.discard(queue)
            if not queue.awake:
                queue.lags = False  # hot: written here
        if self._taken:
            self._begin()
        self._schedule()
