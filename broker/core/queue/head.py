"""The head of a queue: find the next messages to deliver, and drop expired messages and those beyond a limit.

Source: RabbitMQ 4.3, rabbit_fifo: returned messages are delivered before all others, whatever their priority.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.core.message.message import Message
from broker.core.queue.holding import Holding
from broker.core.queue.level import BATCH_MESSAGES, Level
from broker.core.queue.level_owner import LevelOwner, QueueWorker
from broker.core.queue.ports import QueuePorts
from broker.core.queue.rules import DROP_HEAD, QueueRules
from broker.slots.slot import Slot, dense
from broker.slots.states import Owner, Tenure

# Messages expire at one of these heads, or at the front of one level, given by its index in `levels`.
WHOLE: Final = -2  # the head of all levels together
RETURNED: Final = -1  # the front of the lane


class Returned:
    """An entry of a ReturnLane: messages of one slot. Those before `indexes[at]` have left the lane."""

    __slots__ = ("at", "indexes", "priority", "slot")

    def __init__(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        self.priority = priority
        self.slot = slot
        self.indexes = indexes
        self.at = 0


class ReturnLane:
    """Queue the messages that are delivered before all others. Each is stored as its slot and index, and skipped if it
    is no longer ready.
    """

    def __init__(self) -> None:
        self._entries: deque[Returned] = deque()

    def append(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Add one or more messages of a slot at the end."""
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
        """Add one or more messages of a slot at the front, because they were taken but not sent."""
        self._entries.appendleft(Returned(priority, slot, indexes))

    def front(self) -> Returned | None:
        """Return the entry with the next message, or None if there is no message."""
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
        """Return the indexes of up to `limit` ready messages of the entry that `front` has returned."""
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
        """Remove the messages that `ready` returned, because they have been taken."""
        entry = self._entries[0]
        entry.at = bisect_right(entry.indexes, indexes[-1], entry.at)
        if entry.at == len(entry.indexes):
            self._entries.popleft()


def expired_among(
    contents: Sequence[Message | None],
    indexes: Sequence[int],
    ttl_ms: int | None,
    expires_ms: Callable[[Message], int | None],
    now_ms: int,
) -> list[int]:
    """Return the subset of `indexes` whose messages expired before `now_ms`. HOT."""
    expired: list[int] = []
    for index in indexes:
        message = contents[index]
        if message is not None and (ttl_ms is not None or message.facts.expiration_ms is not None):
            at_ms = expires_ms(message)
            if at_ms is not None and at_ms < now_ms:
                expired.append(index)
    return expired


class QueueHead(LevelOwner):
    """The head of a queue: its next messages, expiry and length limits; one slot is read from disk at a time.

    Shapes: `levels` are in ascending order of priority. `_lane` orders the messages returned to a `strict` queue, and
        messages that became due in any queue; it may be None while there are none. `_from_lane` contains the indexes
        that the last `take` removed from the lane. `holding` holds messages until they are due. `serving` prevents
        nested deliveries from the queue.
    """

    __slots__ = ("_from_lane", "_lane", "_ports", "_pressing", "_reading", "deleted", "holding", "level", "levels",
                 "serving", "timed", "worker")  # fmt: skip

    # Compiled code lays attributes out in this order. Those used for every message share few cache lines.
    worker: QueueWorker[Any]
    level: Level
    levels: tuple[Level, ...]

    def __init__(
        self, name: str, rules: QueueRules, ports: QueuePorts[Level, Any], *, durable: bool, strict: bool
    ) -> None:
        super().__init__(name, rules, durable=durable, strict=strict)
        self.deleted = False
        self.serving = False
        self.timed = False  # whether messages may expire; never cleared, because a check costs little
        self.holding: Holding | None = None
        self._ports = ports
        self._from_lane: Sequence[int] = ()
        self._reading = False
        self._pressing = False  # set while `_serve` serves consumers: no message expires
        self._lane: ReturnLane | None = None

    @property
    def ready(self) -> int:
        if not self.prioritized:
            return self.level.manager.ready
        return sum(level.manager.ready for level in self.levels)

    @property
    def all_levels(self) -> Sequence[Level]:
        """The levels, and the holding level if there is one."""
        return self.levels if self.holding is None else (*self.levels, self.holding.level)

    @property
    def waiting(self) -> int:
        """The number of messages that count towards a length limit: ready ones, and those held until they are due."""
        return self.ready if self.holding is None else self.ready + self.holding.count

    @property
    def waiting_bytes(self) -> int:
        """The total body size of the messages that `waiting` counts, as far as known; 0 without a limit in bytes."""
        return sum(level.manager.ready_bytes for level in self.all_levels)

    # -- returned messages --------------------------------------------------------------------------------------------

    def put_last(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Queue returned or due messages after all others in the lane."""
        if self._lane is None:
            self._lane = ReturnLane()
        self._lane.append(priority, slot, indexes)

    def put_back(self, level: Level, slot: Slot, indexes: Sequence[int]) -> None:
        """Put back messages of the last `take` that were not sent, so that they are next again."""
        level.manager.put_back(slot, indexes)
        if self._from_lane and (again := [index for index in indexes if index in self._from_lane]):
            if self._lane is None:
                self._lane = ReturnLane()
            self._lane.put_back(level.priority, slot, again)

    def _returned(self) -> tuple[Level, Slot] | None:
        """Requeue returned messages; return the level and slot of the first message in the lane, or None."""
        if not self.laned:
            return None
        for level in self.levels:
            if level.returning:
                level.catch_up()
        entry = None if self._lane is None else self._lane.front()
        if entry is None:
            self._lane = None
            return None
        for level in self.levels:
            if level.priority == entry.priority:
                return level, entry.slot
        raise AssertionError(f"no level has the priority {entry.priority}")

    def take(self, level: Level, slot: Slot, limit: int) -> Sequence[int]:
        """Take up to `limit` messages of the slot that `lease` returned, and return their indexes."""
        lane = self._lane
        entry = None if lane is None else lane.front()
        if lane is None or entry is None or entry.slot is not slot:
            self._from_lane = ()
            return level.manager.take(slot, limit)
        self._from_lane = indexes = lane.ready(limit)
        if indexes:
            lane.remove(indexes)
            level.manager.pick(slot, indexes)
        return indexes

    def lease_to(self, owner: Owner) -> tuple[Level, Slot] | None:
        """Lease the slot with the next message to a worker: the first message in the lane, or else in the highest level
        that has any. Return None if no slot can be leased.
        """
        found = self._returned()
        if found is not None and found[0].manager.lease(found[1], owner):
            return found
        for level in reversed(self.levels):
            if level.returning:
                level.catch_up()
            if level.manager.ready and (slot := level.manager.get(owner)) is not None:
                return level, slot
        return None

    # -- expiry -------------------------------------------------------------------------------------------------------

    def expires_ms(self, message: Message) -> int | None:
        """Return the moment at which a message of this queue expires, or None if it does not expire."""
        ttl_ms = self.rules.ttl_ms
        own_ms = message.facts.expiration_ms
        if own_ms is None:
            return None if ttl_ms is None else message.timestamp_ms + ttl_ms
        return message.timestamp_ms + (own_ms if ttl_ms is None else min(own_ms, ttl_ms))

    def check_expiry(self) -> bool:
        """Drop expired messages at the head, and schedule the next check. Return False if the turn's share is used up,
        so that the check continues in the next turn. Messages expire only at the head, as in RabbitMQ's classic queues.
        """
        deadlines, now_ms = self._ports.deadlines, self._ports.clock.now_ms
        at_ms = self._drop_expired_first(now_ms) if self.timed else None
        if at_ms is None:
            deadlines.cancel(self)
            return True
        deadlines.set(self, at_ms, self.check_expiry)
        return at_ms > now_ms

    def check_expiry_at(self, at_ms: int) -> None:
        """Schedule a check of the head for the moment at which a message may expire."""
        self.timed = True
        self._ports.deadlines.set(self, at_ms, self.check_expiry)

    def drop_expired(self, level: Level, slot: Slot, indexes: Sequence[int]) -> Sequence[int]:
        """Drop expired messages among those taken, and return the others. During `_serve` none is dropped: a waiting
        consumer gets a new message whatever its time to live.
        """
        if self._pressing:
            return indexes
        assert slot.contents is not None
        now_ms = self._ports.clock.now_ms
        expired = expired_among(slot.contents, indexes, self.rules.ttl_ms, self.expires_ms, now_ms)
        if not expired:
            return indexes
        dropped = set(expired)
        remaining = [index for index in indexes if index not in dropped]
        self._ports.deadlines.spend(len(expired))
        level.dead_letter(slot, expired, "expired")
        return remaining

    # -- limits -------------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        """Serve consumers, then drop messages from the head until the queue is within its limits. If the turn's share
        is used up, or a slot must be read from disk first, continue later.
        """
        if not self._over():
            return
        self._serve()
        if self._drop_over() and self.timed:
            self.check_expiry()  # another message is at the head now

    def _drop_over(self) -> bool:
        """Drop messages beyond the limits, and return whether any was dropped."""
        rules, deadlines = self.rules, self._ports.deadlines
        dropped = 0
        while self._over() and not self.deleted:
            if deadlines.units_left <= 0:
                deadlines.next_turn(("limits", self), self.enforce)
                break
            batch = 1 if rules.max_bytes is not None else BATCH_MESSAGES
            excess = batch if rules.max_length is None else max(self.waiting - rules.max_length, 1)
            held = None if self.ready or self.holding is None else self.holding.level
            count = self._drop(min(excess, batch), held)
            if not count:
                break
            dropped += count
        return dropped > 0

    def _over(self) -> bool:
        rules = self.rules
        return rules.overflow == DROP_HEAD and rules.exceeded(self.waiting, self.waiting_bytes)

    def _serve(self) -> None:
        if not self.serving and not self.deleted and self.consumers.able():
            self._pressing = True
            try:
                self.worker.serve(self)
            finally:
                self._pressing = False

    def _drop(self, count: int, held: Level | None) -> int:
        """Drop up to `count` messages of the first slot, and return their number. `held` is the holding level if only
        held messages are left. Return 0 if dead letters need the slot and it must be read from disk first.
        """
        level, slot = (held, held.manager.front()) if held is not None else self._returned() or self._front()
        assert slot is not None
        if self.rules.dead_letter_exchange is not None and self._waits_for(level, slot):
            return 0
        indexes = self.take(level, slot, count) if held is None else held.manager.take(slot, count)
        self._ports.deadlines.spend(len(indexes))
        level.dead_letter(slot, indexes, "maxlen")
        return len(indexes)

    # -- heads --------------------------------------------------------------------------------------------------------

    def _front(self) -> tuple[Level, Slot | None]:
        """Return the highest level with ready messages and its first such slot; the slot is None if there is none."""
        for level in reversed(self.levels):
            if level.returning:
                level.catch_up()
            slot = level.manager.front()
            if slot is not None:
                return level, slot
        return self.levels[0], None

    def _waits_for(self, level: Level, slot: Slot) -> bool:
        """Return whether a slot is on disk; if so, start to read it unless a read is in progress."""
        if slot.contents is None and not self._reading:
            self._reading = True
            self._ports.read(level, slot, self._was_read)
        return slot.contents is None

    def _was_read(self) -> None:
        self._reading = False
        if not self.deleted:
            self.check_expiry()  # this check or `enforce` has waited for the slot
            self.enforce()

    def _drop_expired_first(self, now_ms: int) -> int | None:
        """Drop expired messages up to the first that has not expired, and return when that one expires. If there are
        several heads (the lane, and each level of a strict queue), return the earliest moment. Return `now_ms` if the
        turn's share is used up, or None if no message at a head expires or a slot must be read first.
        """
        if not self.laned:
            return self._drop_expired_at(WHOLE, now_ms)
        found: int | None = None
        for place in range(RETURNED, len(self.levels)) if self.strict else (RETURNED, WHOLE):
            at_ms = self._drop_expired_at(place, now_ms)
            if at_ms is not None and (found is None or at_ms < found):
                found = at_ms
        return found

    def _drop_expired_at(self, place: int, now_ms: int) -> int | None:
        """Drop expired messages at one head, as `_drop_expired_first` does."""
        while True:
            level, slot = self._at(place)
            indexes = () if slot is None else self._first(place, slot, 1)
            if slot is None or not indexes or self._waits_for(level, slot):
                return None
            assert slot.contents is not None
            message: Message | None = slot.contents[indexes[0]]
            at_ms = None if message is None else self.expires_ms(message)
            if at_ms is None or at_ms > now_ms:
                return at_ms
            if self._ports.deadlines.units_left <= 0:
                return now_ms
            indexes = self._first(place, slot, BATCH_MESSAGES)
            expired = self._count_expired(slot.contents, indexes, now_ms)
            self._ports.deadlines.spend(expired)
            if place == WHOLE:
                indexes = level.manager.take(slot, expired)
            elif place == RETURNED:
                indexes = self.take(level, slot, expired)
            else:
                indexes = indexes[:expired]
                level.manager.pick(slot, indexes)
            level.dead_letter(slot, indexes, "expired")

    def _count_expired(self, contents: Sequence[Message | None], indexes: Sequence[int], now_ms: int) -> int:
        """Return the number of expired messages that precede the first one that has not expired."""
        for count, index in enumerate(indexes):
            message = contents[index]
            at_ms = None if message is None else self.expires_ms(message)
            if at_ms is None or at_ms > now_ms:
                return count
        return len(indexes)

    def _at(self, place: int) -> tuple[Level, Slot | None]:
        """Return the level and the slot of a head; the slot is None if the head has no message."""
        if place == WHOLE:
            return self._front()
        if place >= 0:
            level = self.levels[place]
            return level, level.manager.front()
        return self._returned() or (self.levels[0], None)

    def _first(self, place: int, slot: Slot, limit: int) -> Sequence[int]:
        """Return the indexes of up to `limit` messages at a head, all in the given slot."""
        if place == WHOLE:
            return slot.front(limit)
        if place >= 0:
            return slot.first_fresh(limit)
        return () if self._lane is None else self._lane.ready(limit)
