"""Moving messages from one queue to others of the vhost, a batch in each transaction of the log.

A batch takes messages from their queue, gives them to their new queues and settles them, in one step of the loop and
in one record. So no client sees a message twice or not at all, and a crash leaves each message in its old queue or in
its new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.core.moving.course import Course, Landing, Outcome, land
from broker.core.moving.walk import Walk

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.core.vhost import Vhost
    from broker.slots.slot import Slot

__all__ = ["Move", "MoveTally"]

BATCH_LOOKS: Final = 256  # messages that are looked at, and may not be wanted,
BATCH_COPIES: Final = 100  # ... or copies given to queues, some ten microseconds each,
BATCH_BYTES: Final = 1 << 20  # ... or bytes written: a batch takes a millisecond or two of the loop


@dataclass(slots=True)
class MoveTally:
    """Counts the outcomes of the messages that were looked at. A message that was not moved stays in its queue."""

    looked: int = 0
    moved: int = 0
    unroutable: int = 0
    refused: int = 0

    def count(self, outcome: Outcome | None) -> None:
        """Count a message that was looked at; None is the outcome of one that was not to be moved."""
        self.looked += 1
        if outcome is Outcome.TAKEN:
            self.moved += 1
        elif outcome is Outcome.UNROUTABLE:
            self.unroutable += 1
        elif outcome is Outcome.REFUSED:
            self.refused += 1

    @property
    def unwanted(self) -> int:
        """The count of messages that were not to be moved."""
        return self.looked - self.moved - self.unroutable - self.refused


class Move:
    """Moves the messages that a queue holds when the move begins, in their order.

    Consumers of the queue go on: they keep what they take first, and what they hold unacked. A message
    that has expired is left to expire.
    Shapes: `alone` says that there is one target: once it is full, every further message would be refused.
    """

    __slots__ = ("_alone", "_course", "_limit", "_vhost", "_walk", "_wanted", "done", "full", "source", "tally")

    def __init__(
        self,
        vhost: Vhost,
        source: Queue,
        course: Course,
        *,
        wanted: Callable[[Message], bool],
        limit: int | None = None,
        alone: bool = False,
    ) -> None:
        self._vhost = vhost
        self._course = course
        self._wanted = wanted
        self._limit = limit
        self._alone = alone
        self._walk = Walk(source)
        self.source = source
        self.tally = MoveTally()
        self.full = False
        self.done = False

    def batch(self) -> tuple[Stream, Slot] | None:
        """Move some messages; return a slot that has to be read from disk first, if there is one."""
        found = None if self.full or self.tally.moved == self._limit else self._walk.find()
        if found is None:
            self.done = True
            return None
        stream, slot, indexes = found
        if slot.contents is None:
            return stream, slot
        ports = self._vhost.ports
        moved: list[int] = []
        with self._vhost.store.transaction():
            try:
                self._move_some(stream, slot, slot.contents, indexes, moved)
            finally:  # a message with a record in its new queues leaves this one, whatever the next message raised
                if moved:
                    stream.settle(slot, moved)
                    ports.log_settlements()
        if self.source.timed and not self.source.deleted:
            self.source.look()  # another message is at the head now
        return None

    def _move_some(
        self, stream: Stream, slot: Slot, contents: list[Message | None], indexes: Sequence[int], moved: list[int]
    ) -> None:
        """Give messages of a slot to their new queues, and add the indexes of those that were taken to `moved`."""
        tally, deadlines = self.tally, self._vhost.ports.deadlines
        now_ms = self._vhost.ports.clock.now_ms
        copies = size_bytes = 0
        for index in indexes[:BATCH_LOOKS]:
            if copies >= BATCH_COPIES or size_bytes >= BATCH_BYTES or deadlines.left <= 0:
                break
            if self.full or tally.moved == self._limit:
                break
            self._walk.pass_by(slot, index)
            message = contents[index]
            if message is None:  # it could not be read; that was logged
                continue
            wanted = not self._walk.expired(message, now_ms) and self._wanted(message)
            landing = self._course(message) if wanted else None
            outcome = None
            if landing is not None:
                outcome = self._land(landing, message, stream, slot, index)
                if outcome is None:  # a consumer has it
                    continue
                copies += max(len(landing.queues), 1)
            tally.count(outcome)
            if outcome is Outcome.TAKEN:
                moved.append(index)
                size_bytes += len(message.header) + len(message.body)
            elif outcome is Outcome.REFUSED:
                self.full = self._alone

    def _land(self, landing: Landing, message: Message, stream: Stream, slot: Slot, index: int) -> Outcome | None:
        def take() -> bool:
            try:
                stream.manager.pick(slot, index)
            except ValueError:  # a full queue served its consumers, and they got this message
                return False
            return True

        return land(self._vhost, landing, message.body, take=take)
