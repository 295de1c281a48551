"""The head of a queue: finds the next messages to deliver, reads them from disk, and drops expired ones.

Source: RabbitMQ 4.3, rabbit_fifo: a returned message does not go back to its level.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broker.core.message.message import Message
from broker.core.queue.level import BATCH_MESSAGES, Level
from broker.core.queue.ports import LevelPorts
from broker.slots.slot import Slot, dense
from broker.slots.states import Owner, Tenure

WHOLE: Final = -2  # a place: the head of all levels together
RETURNED: Final = -1  # that of the lane; the others are those of the levels


class Returned:
    """Messages of one slot that were returned in a row, `at` of which have left the lane."""

    __slots__ = ("at", "indexes", "priority", "slot")

    def __init__(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        self.priority = priority
        self.slot = slot
        self.indexes = indexes
        self.at = 0


class ReturnLane:
    """Order the returned ready messages. The slots hold them; the lane has their indexes. Invariant: messages that are
    no longer ready, because an operator or a limit removed them, are skipped.
    """

    def __init__(self) -> None:
        self._entries: deque[Returned] = deque()

    def append(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Put messages of a slot of this level at the end; at least one."""
        entries = self._entries
        if entries:
            last = entries[-1]
            known = last.indexes
            are_dense = isinstance(known, range) and isinstance(indexes, range)
            if last.slot is slot and are_dense and known[-1] + 1 == indexes[0]:
                last.indexes = range(known[0], indexes[-1] + 1)
                return
        entries.append(Returned(priority, slot, indexes))

    def put_back(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Put messages that were taken but not sent back to the front; at least one."""
        self._entries.appendleft(Returned(priority, slot, indexes))

    def front(self) -> Returned | None:
        """Return the place of the next message, None if none is left."""
        entries = self._entries
        while entries:
            entry = entries[0]
            if entry.slot.tenure is not Tenure.DELETED:
                count = len(entry.indexes)
                while entry.at < count and not entry.slot.is_ready(entry.indexes[entry.at]):
                    entry.at += 1
                if entry.at < count:
                    return entry
            entries.popleft()
        return None

    def ready(self, limit: int) -> Sequence[int]:
        """Return up to `limit` next messages of one slot; `front` has found one."""
        entry = self._entries[0]
        slot, indexes = entry.slot, entry.indexes
        found: list[int] = []
        for place in range(entry.at, len(indexes)):
            if len(found) == limit:
                break
            if slot.is_ready(indexes[place]):
                found.append(indexes[place])
        return dense(found) if found else found

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove messages that `ready` returned, because they are taken; one that is returned again goes to the end."""
        entry = self._entries[0]
        entry.at = bisect_right(entry.indexes, indexes[-1], entry.at)
        if entry.at == len(entry.indexes):
            self._entries.popleft()


def expired_first(
    contents: Sequence[Message | None], indexes: Sequence[int], expires_ms: Callable[[Message], int | None], now_ms: int
) -> int:
    """Return the number of expired messages before the first that has not expired."""
    for count, index in enumerate(indexes):
        message = contents[index]
        at_ms = None if message is None else expires_ms(message)
        if at_ms is None or at_ms > now_ms:
            return count
    return len(indexes)


def expired_among(
    contents: Sequence[Message | None],
    indexes: Sequence[int],
    ttl_ms: int | None,
    expires_ms: Callable[[Message], int | None],
    now_ms: int,
) -> list[int]:
    """Return the indexes of a slot's messages that expired before `now_ms`. HOT.

    Shapes: ``expires_ms`` is called for messages that have an expiration, and for all messages of a queue with a
        `ttl_ms`.
    """
    expired: list[int] = []
    for index in indexes:
        message = contents[index]
        if message is not None and (ttl_ms is not None or message.facts.expiration_ms is not None):
            at_ms = expires_ms(message)
            if at_ms is not None and at_ms < now_ms:
                expired.append(index)
    return expired


def _nobody() -> None:
    """Ignore that a slot was read."""


class QueueHead:
    """Find the next message of a queue, and drop messages from the head; one slot is read at a time. Shapes: ``lane``
    orders the messages returned to a ``strict`` queue, and messages that became due in any queue; it is None while
    there are none. ``_early`` are the last ones taken from it.
    """

    __slots__ = ("_early", "_laned", "_levels", "_ports", "_reading", "_strict", "_was_read", "lane")

    def __init__(
        self, levels: Sequence[Level], ports: LevelPorts[Level], was_read: Callable[[], None], *, strict: bool
    ) -> None:
        """`was_read` is notified that a slot is back in memory."""
        self._levels = levels
        self._ports = ports
        self._was_read = was_read
        self._strict = self._laned = strict
        self._early: Sequence[int] = ()
        self._reading = False
        self.lane: ReturnLane | None = None

    def end(self, ended: Level) -> None:
        """Switch to an ended level, without notifying."""
        self._levels = (ended,)
        self.lane = None
        self._was_read = _nobody

    def take_levels(self, levels: Sequence[Level]) -> None:
        """Set the levels of the queue."""
        self._levels = levels

    def use_lane(self) -> None:
        """Deliver from the lane first, because messages may become due."""
        self._laned = True

    # -- returned messages --------------------------------------------------------------------------------------------

    def put_last(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Queue returned messages after all others in the lane."""
        if self.lane is None:
            self.lane = ReturnLane()
        self.lane.append(priority, slot, indexes)

    def put_back(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Put messages that were taken from the lane but not sent back to its front; nothing was taken since."""
        if not self._early:
            return
        again = [index for index in indexes if index in self._early]
        if again:
            if self.lane is None:
                self.lane = ReturnLane()
            self.lane.put_back(priority, slot, again)

    def returned(self) -> tuple[Level, Slot] | None:
        """Return the place of the next returned message, None without one."""
        for level in self._levels:
            if level.returning:
                level.catch_up()
        lane = self.lane
        if lane is None:
            return None
        entry = lane.front()
        if entry is None:
            self.lane = None
            return None
        for level in self._levels:
            if level.priority == entry.priority:
                return level, entry.slot
        raise AssertionError(f"no level has the priority {entry.priority}")

    def take(self, level: Level, slot: Slot, limit: int) -> Sequence[int]:
        """Take up to `limit` messages of the next slot."""
        lane = self.lane
        entry = None if lane is None else lane.front()
        if lane is None or entry is None or entry.slot is not slot:
            self._early = ()
            return level.manager.take(slot, limit)
        self._early = indexes = lane.ready(limit)
        if indexes:
            lane.remove(indexes)
            level.manager.pick(slot, indexes)
        return indexes

    def lease(self, owner: Owner) -> tuple[Level, Slot] | None:
        """Lease the slot with the next message to a worker: a returned message first, then one of the highest level."""
        found = self.returned() if self._laned else None
        if found is not None and found[0].manager.lease(found[1], owner):
            return found
        for level in reversed(self._levels):
            if level.returning:
                level.catch_up()
            if level.manager.ready and (slot := level.manager.get(owner)) is not None:
                return level, slot
        return None

    # -- what leaves --------------------------------------------------------------------------------------------------

    def find(self) -> tuple[Level, Slot | None]:
        """Return the level and the slot of the message that is delivered next; no slot without a message."""
        found = self.returned() if self._laned else None
        return self._find_in_levels() if found is None else found

    def _find_in_levels(self) -> tuple[Level, Slot | None]:
        for level in reversed(self._levels):
            if level.returning:
                level.catch_up()
            slot = level.manager.front()
            if slot is not None:
                return level, slot
        return self._levels[0], None

    def waits_for(self, level: Level, slot: Slot) -> bool:
        """Return whether a slot is on disk; if it does, read it."""
        if slot.contents is None and not self._reading:
            self._reading = True
            self._ports.read(level, slot, self._read)
        return slot.contents is None

    def drop(self, count: int, reason: str, *, read: bool, held: Level | None) -> int:
        """Drop at most this many messages of the first slot, which must exist, and return their number. Return 0 while
        the slot is on disk and must be `read` first, as for dead letters. With `held` the messages are the oldest of
        that holding level.
        """
        level, slot = self.find() if held is None else (held, held.manager.front())
        assert slot is not None
        if read and self.waits_for(level, slot):
            return 0
        indexes = self.take(level, slot, count) if held is None else held.manager.take(slot, count)
        self._ports.deadlines.spend(len(indexes))
        level.dead_letter(slot, indexes, reason)
        return len(indexes)

    def drop_expired(self, expires_ms: Callable[[Message], int | None], now_ms: int) -> int | None:
        """Drop expired messages up to the first that has not expired, and return when that one expires. The lane has a
        head, as has each level of a strict queue: return the earliest moment. Return `now_ms` if the turn's share is
        used up, None if no head expires or a slot must be read first.
        """
        if not self._laned:
            return self._drop_expired_at(WHOLE, expires_ms, now_ms)
        found: int | None = None
        for place in range(RETURNED, len(self._levels)) if self._strict else (RETURNED, WHOLE):
            at_ms = self._drop_expired_at(place, expires_ms, now_ms)
            if at_ms is not None and (found is None or at_ms < found):
                found = at_ms
        return found

    def _drop_expired_at(self, place: int, expires_ms: Callable[[Message], int | None], now_ms: int) -> int | None:
        """Drop expired messages at one head, as `drop_expired` does."""
        while True:
            level, slot = self._at(place)
            indexes = () if slot is None else self._first(place, slot, 1)
            if slot is None or not indexes or self.waits_for(level, slot):
                return None
            assert slot.contents is not None
            message: Message | None = slot.contents[indexes[0]]
            at_ms = None if message is None else expires_ms(message)
            if at_ms is None or at_ms > now_ms:
                return at_ms
            if self._ports.deadlines.left <= 0:
                return now_ms
            indexes = self._first(place, slot, BATCH_MESSAGES)
            expired = expired_first(slot.contents, indexes, expires_ms, now_ms)
            self._ports.deadlines.spend(expired)
            if place == WHOLE:
                indexes = level.manager.take(slot, expired)
            elif place == RETURNED:
                indexes = self.take(level, slot, expired)
            else:
                indexes = indexes[:expired]
                level.manager.pick(slot, indexes)
            level.dead_letter(slot, indexes, "expired")

    def _at(self, place: int) -> tuple[Level, Slot | None]:
        """Return the level and the slot of a head; no slot without a message."""
        if place == WHOLE:
            return self._find_in_levels()
        if place >= 0:
            level = self._levels[place]
            return level, level.manager.front()
        found = self.returned()
        return (self._levels[0], None) if found is None else found

    def _first(self, place: int, slot: Slot, limit: int) -> Sequence[int]:
        """Return up to `limit` messages at a head, which has one in this slot."""
        if place == WHOLE:
            return slot.front(limit)
        if place >= 0:
            return slot.first_fresh(limit)
        lane = self.lane
        return () if lane is None else lane.ready(limit)

    def _read(self) -> None:
        self._reading = False
        self._was_read()
