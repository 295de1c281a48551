"""The consumers of one queue and the order in which they are served: by priority, then round robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

BATCH_MESSAGES: Final = 256  # messages distributed at a time
ROW_MESSAGES: Final = 16  # at most this many consecutive messages for each of many consumers


class RingMember:
    """A consumer as its queue sees it. Among the members with room, those with the highest ``priority`` are served.
    Units: ``unacked`` is in messages. ``parked`` is 0 for a consumer that is not parked; parked consumers are numbered
        in the order in which they were parked.
    """

    __slots__ = ("exclusive", "parked", "priority", "tag", "unacked")

    def __init__(self, tag: str, *, priority: int, exclusive: bool) -> None:
        self.unacked = 0
        self.parked = 0
        self.tag = tag
        self.priority = priority
        self.exclusive = exclusive

    def left(self) -> None:
        """Mark the consumer as not parked, because it is no longer part of a ring."""
        self.parked = 0

    def room(self) -> int:
        """Return how many messages may be delivered to the consumer now."""
        raise NotImplementedError

    def share(self) -> int:
        """Return the consumer's part of a prefetch that it shares with others, or 0 if it can use none."""
        return 0

    def cancelled_by_broker(self) -> None:
        """Remove the consumer from its channel, and notify the client if it supports that (consumer_cancel_notify)."""
        raise NotImplementedError


class ConsumerRing:
    """Order a queue's consumers by priority, and round robin within a priority. A consumer that was found without room
    is *parked*: it is not checked again until `unpark`. So the cost of a round depends on the number of consumers
    served, not on their total number.

    A single active consumer remains active until it is removed or yields: in a ring that `yields`, it receives nothing
    more once a consumer with a higher priority is added, and is replaced by that consumer once it has no unacked
    messages.
    Invariant: if there are several consumers, each is on the ring of its priority or parked; a lone one needs no ring.
    Source: RabbitMQ 4.0, quorum queues.
    """

    __slots__ = ("_active", "_consumers", "_lap", "_parkings", "_rings", "_rival", "_row", "_single_active", "_yields",
                 "alone", "paused", "present")  # fmt: skip

    def __init__(self, *, single_active: bool = False, yields: bool = False) -> None:
        # Compiled code lays attributes out in this order. Those used for every message share few cache lines.
        self.alone: RingMember | None = None  # the only consumer, even while the ring is paused
        self._active: RingMember | None = None
        self._rival: RingMember | None = None  # a consumer with a higher priority, to which the active one yields
        self.present = False  # whether there are consumers and the ring is not paused
        self.paused = False
        self._single_active = single_active
        self._yields = yields
        self._consumers: dict[RingMember, None] = {}
        self._rings: dict[int, deque[RingMember]] = {}  # by priority, the highest first; the leftmost is served next
        self._row = 1  # consecutive messages for each consumer in this lap
        self._lap = 0  # consumers that have yet to be served in this lap
        self._parkings = 0  # how often a consumer was parked

    def __len__(self) -> int:
        return len(self._consumers)

    def __bool__(self) -> bool:
        return len(self._consumers) > 0

    def __iter__(self) -> Iterator[RingMember]:
        """Iterate over the consumers in the order in which they were added."""
        return iter(self._consumers)

    @property
    def exclusive(self) -> bool:
        """Whether one consumer has exclusive use of the queue."""
        return self.alone is not None and self.alone.exclusive

    def add(self, consumer: RingMember) -> None:
        """Add a consumer; it is the last of its priority to have a turn."""
        alone = self.alone
        self._consumers[consumer] = None
        self._count()
        if alone is not None:
            self._put(alone)
        if self.alone is None:
            self._put(consumer)
        if self._single_active:
            self._choose()

    def _put(self, consumer: RingMember) -> None:
        """Add a consumer at the end of the ring of its priority."""
        if consumer.priority not in self._rings:
            self._rings[consumer.priority] = deque()
            self._rings = dict(sorted(self._rings.items(), reverse=True))
        self._rings[consumer.priority].append(consumer)

    @property
    def active(self) -> RingMember | None:
        """The active consumer of a queue with a single active consumer, or None if there is none."""
        self._is_yielding()
        return self._active

    def count_broker(self) -> None:
        """Set ``present`` for a queue that the broker itself reads, so that appended messages wake its reader."""
        self.present = True

    def pause(self) -> None:
        """Serve no consumer until `resume`; the order does not change."""
        self.paused = True
        self._count()

    def resume(self) -> None:
        self.paused = False
        self._count()

    def remove(self, consumer: RingMember) -> None:
        """Remove a consumer. If it was the single active one, the oldest with the highest priority becomes active.

        Cost: O(consumers).
        """
        del self._consumers[consumer]
        self._count()
        if consumer.parked:
            consumer.left()
        elif self._rings:
            self._rings[consumer.priority].remove(consumer)
        if self.alone is not None:
            self.alone.left()
            self._rings = {}
        if self._single_active:
            self._choose()

    def clear(self) -> list[RingMember]:
        """Remove all consumers and return them."""
        removed = list(self._consumers)
        for consumer in removed:
            consumer.left()
        self._consumers.clear()
        self._rings.clear()
        self._active = self._rival = None
        self._count()
        return removed

    def able(self) -> bool:
        """Return whether a message can be delivered to a consumer now. Consumers that are found without room may be
        parked; the order of the others does not change.
        """
        if self.paused or self._is_yielding():
            return False
        consumer = self.alone or self._active
        if consumer is not None:
            return consumer.room() > 0
        for ring in self._rings.values():
            while ring:
                if ring[0].room() > 0:
                    return True
                self._park(ring.popleft())
        return False

    def room(self, limit: int) -> int:
        """Return for how many messages the consumers have room now, at most `limit`; the order does not change. A
        prefetch that several consumers share is counted once for each of them.

        Cost: O(consumers that are not parked).
        """
        if self.paused or self._is_yielding():
            return 0
        consumer = self.alone or self._active
        if consumer is not None:
            return max(0, min(consumer.room(), limit))
        room = 0
        for ring in self._rings.values():
            for waiting in ring:
                room += max(0, waiting.room())
                if room >= limit:
                    return limit
        return room

    def share(self) -> int:
        """Return the part of a shared prefetch that one of the consumers can use, or 0 if there is none.

        Cost: O(1): only the first ROW_MESSAGES consumers are checked.
        """
        if self.paused:
            return 0
        for consumer in islice(self._consumers, ROW_MESSAGES):
            if share := consumer.share():
                return share
        return 0

    def next(self, ready: int) -> list[RingMember]:
        """Return the consumers that share the next messages, in the order of their turns: those with room, of the
        highest priority with such a consumer, and no more than the `ready` messages need. If the backlog is long,
        each gets several consecutive messages, which saves writes. If several consumers are returned, the caller must
        call `served` with the last one that got a message.
        Cost: O(priorities, and consumers returned and parked).
        """
        if self.paused or self._is_yielding():
            return []
        consumer = self.alone or self._active
        if consumer is not None:
            return [consumer] if consumer.room() > 0 else []
        if ready < BATCH_MESSAGES:
            limit = ready
            if not limit:
                return []
        else:
            if self._lap <= 0:
                self._lap = len(self._consumers) or 1
                self._row = min(max(ready // self._lap, 1), ROW_MESSAGES)
            limit = -(-BATCH_MESSAGES // self._row)
        for ring in self._rings.values():
            if ring and (able := self._able(ring, limit)):
                self._lap -= len(able)
                return able
        return []

    def served(self, consumer: RingMember) -> None:
        """Record the consumer that was served last: the one after it is next. Cost: O(consumers) at most."""
        ring = self._rings.get(consumer.priority)
        if ring is None or consumer.parked:
            return
        with suppress(ValueError):  # it was removed
            ring.rotate(-1 - ring.index(consumer))

    def unpark(self, consumer: RingMember) -> None:
        """Add a parked consumer, which may have room again, at the end of its ring."""
        consumer.parked = 0  # hot: set directly
        self._rings[consumer.priority].append(consumer)

    def _choose(self) -> None:
        """Choose the active consumer if there is none, and the one to which it will yield: in both cases the oldest
        with the highest priority.
        """
        best = max(self._consumers, key=lambda other: other.priority, default=None)
        if self._active not in self._consumers:
            self._active = best
        active = self._active
        yields = self._yields and best is not None and active is not None and best.priority > active.priority
        self._rival = best if yields else None

    def _is_yielding(self) -> bool:
        """Return whether the active consumer is yielding, and so receives nothing more. Once it has no unacked
        messages, the consumer to which it yields becomes active.
        """
        if self._rival is None or self._active is None:
            return False
        if self._active.unacked:
            return True
        self._active, self._rival = self._rival, None
        return False

    def _able(self, ring: deque[RingMember], limit: int) -> list[RingMember]:
        """Return up to `limit` consumers with room, and park those without room that precede them."""
        able: list[RingMember] = []
        for _ in range(len(ring)):
            consumer = ring.popleft()
            if consumer.room() > 0:
                able.append(consumer)
                if len(able) >= limit:
                    break
            else:
                self._park(consumer)
        if len(able) == 1:
            ring.append(able[0])  # the caller need not call `served`
        else:
            ring.extendleft(reversed(able))
        return able

    def _park(self, consumer: RingMember) -> None:
        self._parkings += 1
        consumer.parked = self._parkings  # hot: set directly

    def _count(self) -> None:
        self.present = bool(self._consumers) and not self.paused
        self.alone = next(iter(self._consumers)) if len(self._consumers) == 1 else None
