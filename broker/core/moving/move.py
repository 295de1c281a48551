"""Moving messages from one queue to others of the vhost, a batch in each transaction of the log.

A batch adds messages to their new queues and settles them in the old one, in one loop turn and one log record. So
clients never see a message in both, and a crash leaves it either in its old queue or in its new ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.core.message.message import Message
from broker.core.moving.placement import FindPlacement, Outcome, Placement, place_message
from broker.core.moving.walk import Walk, is_expired
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.slots.slot import Slot

# The limits of a batch, which keep it within about two milliseconds.
BATCH_EXAMINED: Final = 256  # messages that are compared with the condition
BATCH_COPIES: Final = 100  # copies that are queued, at some ten microseconds each
BATCH_BYTES: Final = 1 << 20  # octets of headers and bodies


@dataclass(slots=True)
class MoveTally:
    """Count the outcomes of the examined messages. A message that was not moved stays in its queue."""

    examined: int = 0
    moved: int = 0
    unroutable: int = 0
    refused: int = 0

    def count(self, outcome: Outcome | None) -> None:
        """Count an examined message; None is the outcome for a message that is not to be moved."""
        self.examined += 1
        self.moved += outcome is Outcome.ACCEPTED
        self.unroutable += outcome is Outcome.UNROUTABLE
        self.refused += outcome is Outcome.REFUSED

    @property
    def unwanted(self) -> int:
        """The number of messages that were not to be moved."""
        return self.examined - self.moved - self.unroutable - self.refused


class Move:
    """Move the messages that a queue contains when the move begins, in their order. Consumers continue; messages that
    are unacked, or are delivered before their turn, are not moved. Expired messages are left to expire.
    Shapes: with `single_target`, the move ends once a message is refused.
    """

    def __init__(
        self,
        vhost: Vhost,
        source: Queue,
        find_placement: FindPlacement,
        *,
        wanted: Callable[[Message], bool],
        limit: int | None = None,
        single_target: bool = False,
    ) -> None:
        self.vhost = vhost
        self._find_placement = find_placement
        self._wanted = wanted
        self._limit = limit
        self.single_target = single_target
        self._walk = Walk(source)
        self.source = source
        self.tally = MoveTally()
        self.full = False
        self.done = False

    @property
    def remaining(self) -> int:
        """How many more messages may be moved: none once a single target has refused one."""
        if self.full:
            return 0
        return sys.maxsize if self._limit is None else self._limit - self.tally.moved

    def placement_of(self, message: Message) -> Placement | None:
        """Return the placement of a message, or None if it is not to be moved."""
        return self._find_placement(message) if self._wanted(message) else None

    def count(self, outcome: Outcome | None) -> None:
        """Count an examined message; None is the outcome for a message that is not to be moved."""
        self.tally.count(outcome)
        if outcome is Outcome.REFUSED:
            self.full = self.single_target

    def end(self) -> None:
        self.done = True

    def batch(self) -> tuple[Level, Slot] | None:
        """Move a batch of messages, or set ``done``. Return the slot that must be read from disk first, if any."""
        found = self._walk.find() if self.remaining else None
        if found is None:
            self.end()
            return None
        level, slot, indexes = found
        if slot.contents is None:
            return level, slot
        ports = self.vhost.ports
        moved: list[int] = []
        with self.vhost.store.transaction():
            try:
                self._move_some(level, slot, slot.contents, indexes, moved)
            finally:  # settle messages that are in their new queues, even if a later message raised an error
                if moved:
                    level.settle(slot, moved)
                    settled = ports.settled
                    while settled:
                        settled.pop().log_settlements()
        if self.source.timed and not self.source.deleted:
            self.source.check_expiry()  # another message is at the head now
        return None

    def _move_some(
        self, level: Level, slot: Slot, contents: list[Message | None], indexes: Sequence[int], moved: list[int]
    ) -> None:
        """Add messages of a slot to their new queues, and their indexes to `moved`."""
        deadlines = self.vhost.ports.deadlines
        now_ms = self.vhost.ports.clock.now_ms
        copies = size_bytes = 0
        for index in indexes[:BATCH_EXAMINED]:
            if copies >= BATCH_COPIES or size_bytes >= BATCH_BYTES or deadlines.units_left <= 0:
                break
            if not self.remaining:
                break
            self._walk.advance_past(slot, index)
            message = contents[index]
            if message is None:  # it could not be read, which was logged
                continue
            placement = None if is_expired(self.source, message, now_ms) else self.placement_of(message)
            outcome = None
            if placement is not None:
                outcome = self._place(placement, message, level, slot, index)
                if outcome is None:  # a consumer got it
                    continue
                copies += max(len(placement.queues), 1)
            self.count(outcome)
            if outcome is Outcome.ACCEPTED:
                moved.append(index)
                size_bytes += len(message.header) + len(message.body)

    def _place(self, placement: Placement, message: Message, level: Level, slot: Slot, index: int) -> Outcome | None:
        def take() -> bool:
            try:
                level.manager.pick(slot, [index])
            except ValueError:  # a full target served its consumers, and one of them got this message
                return False
            return True

        return place_message(self.vhost, placement, message.body, take=take)
