"""Wide publishes: a message for very many queues enters them over several turns of the loop.

Its record, with its id in every queue that needs a record, is logged at once, so after a crash either all of these
queues contain the message or none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, cast

from broker.core.deadlines import Deadlines
from broker.core.message.message import Message
from broker.core.publishing.message_store import MessageStore
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue

QUEUES_PER_TURN: Final = 1000  # queues that a message enters in one turn, in one to three milliseconds
QUEUES_PER_UNIT: Final = 8  # queues for one unit of the turn's share


class WidePublish:
    """One message, and the levels that it has yet to enter.

    Shapes: `next` is the index of the first level that `enter_some` has not visited. `enters` is called by each level
        before its next message, so that no message overtakes this one.
    Invariant: while the message has yet to enter a level, the level's `before_next` is `enters`.
    """

    __slots__ = ("_copy", "_entered", "_message", "enters", "levels", "next")

    def __init__(self, message: Message, levels: list[Level], entered: list[tuple[Queue, Message]]) -> None:
        """`entered` collects the queues that have to apply their rules to the message."""
        self._message = message
        # Levels without a record get a copy of a transient message: it must not refer to the record of other levels.
        self._copy = message if message.facts.persistent else message.copy()
        self._entered = entered
        self.levels = levels
        self.next = 0
        self.enters: Callable[[Level], None] = self._enter

    def needs_record(self, level: Level) -> bool:
        return level.durable if self._message.facts.persistent else level.persists_all

    def enter_some(self, count: int) -> int:
        """Visit up to `count` levels, and enter those that the message has not entered; return the number visited."""
        begin = self.next
        self.next = min(len(self.levels), begin + count)
        for place in range(begin, self.next):
            level = self.levels[place]
            if level.before_next is self.enters:
                level.run_before_next()
        return self.next - begin

    def _enter(self, level: Level) -> None:
        if level.deleted:
            return
        recorded = self.needs_record(level)
        message = self._message if recorded else self._copy
        level.append([message], recorded=recorded)
        queue = cast("Queue", level.queue)
        if not queue.plain or message.facts.expiration_ms is not None:
            if queue.duplicates is not None:
                queue.note_taken(message)
            self._entered.append((queue, message))  # apply its rules later: the store may be accepting another message


class WidePublishes:
    """The wide publishes of one vhost that are in progress.

    Units: `begun` counts the wide publishes since startup.
    """

    def __init__(self, store: MessageStore, deadlines: Deadlines) -> None:
        self._store = store
        self._deadlines = deadlines
        self._publishes: deque[WidePublish] = deque()
        self._entered: list[tuple[Queue, Message]] = []
        self._waiting: list[Callable[[], None]] = []
        self.begun = 0

    @property
    def pending(self) -> bool:
        """Whether there is a message that has not entered all of its queues."""
        return bool(self._publishes)

    def begin(self, message: Message, levels: list[Level], number: bytes) -> None:
        """Append the record of a message, if it needs one. The message enters levels of the overlay at once, others in
        the next turns. `number` is a producer's sequence number, to be prepended to the targets in the record.

        Cost: O(levels), some 0.2 us each.
        """
        self.begun += 1
        publish = WidePublish(message, levels, self._entered)
        recorded = []
        for level in levels:
            if level.before_next is not None:
                level.run_before_next()
            if publish.needs_record(level):
                recorded.append(level)
        if recorded:
            self._store.record_ahead(message, recorded, number)
        for level in levels:
            level.call_before_next(publish.enters)
            if cast("Queue", level.queue).is_overlay:  # the overlay needs `before_next` itself
                level.run_before_next()
        self._publishes.append(publish)
        self._deadlines.next_turn(self, self.turn)

    def enter_now(self, queue: Queue) -> None:
        """Add to a queue the messages that have yet to enter it, because a method is about to use the queue."""
        if self._publishes and not queue.is_overlay:
            for level in queue.levels:
                if level.before_next is not None:
                    level.run_before_next()

    def turn(self) -> None:
        """Add the oldest messages to their next queues, QUEUES_PER_TURN at most."""
        left = QUEUES_PER_TURN
        while self._publishes and left > 0:
            publish = self._publishes[0]
            left -= publish.enter_some(left)
            if publish.next == len(publish.levels):
                self._publishes.popleft()
        self._deadlines.spend((QUEUES_PER_TURN - left) // QUEUES_PER_UNIT)
        entered = self._entered[:]
        self._entered.clear()
        for queue, message in entered:
            if not queue.deleted:
                queue.accepted(message)
        if self._publishes:
            self._deadlines.next_turn(self, self.turn)
            return
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def when_entered(self, then: Callable[[], None]) -> None:
        """Call `then` once every message has entered all of its queues. Invariant: a message is `pending`."""
        self._waiting.append(then)
