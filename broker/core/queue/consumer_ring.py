"""The consumers of one queue and the order in which they are served: by priority, then round robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

BATCH_MESSAGES: Final = 256  # messages distributed at a time
ROW_MESSAGES: Final = 16  # messages in a row for one of very many consumers, if there are enough for all


class RingMember:
    """A consumer as its queue sees it. Among the members with room, those with the highest ``priority`` are served.
    Units: ``unacked`` is in messages. ``parked`` is 0, or a number that is lower the longer the queue has passed over
        the consumer.
    """

    __slots__ = ("exclusive", "parked", "priority", "tag", "unacked")

    def __init__(self, tag: str, *, priority: int, exclusive: bool) -> None:
        self.unacked = 0
        self.parked = 0
        self.tag = tag
        self.priority = priority
        self.exclusive = exclusive

    def left(self) -> None:
        """Handle the consumer's departure from its queue."""
        self.parked = 0

    def room(self) -> int:
        """Return the number of messages that the consumer can take now."""
        raise NotImplementedError

    def share(self) -> int:
        """Return the number of messages that the consumer may get in its turn if others use up its shared prefetch."""
        return 0

    def cancelled_by_broker(self) -> None:
        """Tell the client that the queue is gone."""
        raise NotImplementedError


class ConsumerRing:
    """Hold a queue's consumers in the order of their turns. A consumer that was found without room is *parked*: it is
    not asked again before `unpark`. So the cost of a round depends on the consumers served, not on their total number.
    When several are unparked together, the one parked longest comes first.
    Invariant: with a single active consumer, ``active`` is one of the consumers as long as there is one. It stays
        active until it leaves, even when a consumer with a higher priority arrives; in a ring that `yields` it then
        gets no more messages, and the other takes over once the active one has settled its messages. With several
        consumers, each is on the ring of its priority exactly while it is not ``parked``; a single consumer needs no
        ring. While the ring is ``paused`` no consumer has room. Source: RabbitMQ 4.0, quorum queues.
    """

    __slots__ = ("_active", "_consumers", "_lap", "_parkings", "_rings", "_rival", "_row", "_single_active", "_yields",
                 "alone", "paused", "present")  # fmt: skip

    def __init__(self, *, single_active: bool = False, yields: bool = False) -> None:
        # What every message reads comes first, so that it occupies few cache lines.
        self.alone: RingMember | None = None  # the only consumer, paused or not: most queues have one
        self._active: RingMember | None = None
        self._rival: RingMember | None = None  # has a higher priority than the active one, which will yield to it
        self.present = False  # whether one may get messages; an attribute, because each run of publishes reads it
        self.paused = False
        self._single_active = single_active
        self._yields = yields
        self._consumers: dict[RingMember, None] = {}
        self._rings: dict[int, deque[RingMember]] = {}  # by priority, the highest first; the left end's turn is next
        self._row = 1  # messages that each consumer gets in this lap, while there are many
        self._lap = 0  # consumers that are left of the lap
        self._parkings = 0  # counts how often a consumer was parked

    def __len__(self) -> int:
        return len(self._consumers)

    def __bool__(self) -> bool:
        return len(self._consumers) > 0

    def __iter__(self) -> Iterator[RingMember]:
        """Iterate over the consumers in the order of their arrival."""
        return iter(self._consumers)

    @property
    def exclusive(self) -> bool:
        """Whether one consumer has exclusive use of the queue."""
        return self.alone is not None and self.alone.exclusive

    def add(self, consumer: RingMember) -> None:
        """Add a consumer at the end, after the one that was served last."""
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
        """Put a consumer at the end of the ring of its priority."""
        if consumer.priority not in self._rings:
            self._rings[consumer.priority] = deque()
            self._rings = dict(sorted(self._rings.items(), reverse=True))
        self._rings[consumer.priority].append(consumer)

    @property
    def active(self) -> RingMember | None:
        """The single active consumer, if there is such a rule and a consumer."""
        self._is_yielding()
        return self._active

    def count_broker(self) -> None:
        """Count the broker itself as a consumer: it reads the queue, and is woken as a consumer's worker would be."""
        self.present = True

    def pause(self) -> None:
        """Serve no consumer until `resume`; they keep their places."""
        self.paused = True
        self._count()

    def resume(self) -> None:
        """Serve the consumers again."""
        self.paused = False
        self._count()

    def remove(self, consumer: RingMember) -> None:
        """Remove a consumer; with a single active consumer, the next of the highest priority follows it.

        Cost: O(n) consumers.
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
        gone = list(self._consumers)
        for consumer in gone:
            consumer.left()
        self._consumers.clear()
        self._rings.clear()
        self._active = self._rival = None
        self._count()
        return gone

    def able(self) -> bool:
        """Return whether any consumer can take a message now; turns do not change."""
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

    def room(self, most: int) -> int:
        """Return the number of messages that the consumers can take now, at most `most`; turns do not change.

        Those that share the prefetch of their channel are each counted with all of it.
        Cost: O(consumers that were not found without room before), fewer if the first ones have room for all.
        """
        if self.paused or self._is_yielding():
            return 0
        consumer = self.alone or self._active
        if consumer is not None:
            return max(0, min(consumer.room(), most))
        room = 0
        for ring in self._rings.values():
            for waiting in ring:
                room += max(0, waiting.room())
                if room >= most:
                    return most
        return room

    def share(self) -> int:
        """Return the number of messages that a consumer may get in its turn even if consumers of other queues use up
        the room. Cost: O(1): of many consumers, only the first ones are asked.
        """
        if self.paused:
            return 0
        for consumer in islice(self._consumers, ROW_MESSAGES):
            if share := consumer.share():
                return share
        return 0

    def next(self, ready: int) -> list[RingMember]:
        """Return the consumers that share the next messages, the one whose turn it is first.

        They have room, and the highest priority of those that have room. No more are returned than the `ready` messages
        need. A long backlog is distributed in rows, which saves each consumer's connection a write per message. This
        ends the turn of a single consumer; with several, `served` records the last one.
        Cost: O(consumers returned and parked).
        """
        if self.paused or self._is_yielding():
            return []
        consumer = self.alone or self._active
        if consumer is not None:
            return [consumer] if consumer.room() > 0 else []
        if ready < BATCH_MESSAGES:
            most = ready
            if not most:
                return []
        else:
            if self._lap <= 0:
                self._lap = len(self._consumers) or 1
                self._row = min(max(ready // self._lap, 1), ROW_MESSAGES)
            most = -(-BATCH_MESSAGES // self._row)
        for ring in self._rings.values():
            if ring and (able := self._able(ring, most)):
                self._lap -= len(able)
                return able
        return []

    def served(self, consumer: RingMember) -> None:
        """Record the consumer that was served last; those after it have their turn first.

        Cost: O(consumers served with it); O(n) consumers if it has left meanwhile.
        """
        ring = self._rings.get(consumer.priority)
        if ring is None or consumer.parked:
            return
        with suppress(ValueError):  # it has left
            ring.rotate(-1 - ring.index(consumer))

    def unpark(self, consumer: RingMember) -> None:
        """Put a parked consumer, which may have room again, at the end of its ring."""
        consumer.parked = 0  # hot: written here
        self._rings[consumer.priority].append(consumer)

    def _choose(self) -> None:
        """Choose the active consumer, and the one to which it will yield: the oldest with the highest priority."""
        best = max(self._consumers, key=lambda other: other.priority, default=None)
        if self._active not in self._consumers:
            self._active = best
        active = self._active
        yields = self._yields and best is not None and active is not None and best.priority > active.priority
        self._rival = best if yields else None

    def _is_yielding(self) -> bool:
        """Return whether the active consumer only has to settle its messages; once it has, let the other take over."""
        if self._rival is None or self._active is None:
            return False
        if self._active.unacked:
            return True
        self._active, self._rival = self._rival, None
        return False

    def _able(self, ring: deque[RingMember], most: int) -> list[RingMember]:
        """Return up to `most` consumers with room, and park those without room between them."""
        able: list[RingMember] = []
        for _ in range(len(ring)):
            consumer = ring.popleft()
            if consumer.room() > 0:
                able.append(consumer)
                if len(able) >= most:
                    break
            else:
                self._park(consumer)
        if len(able) == 1:
            ring.append(able[0])  # it is the last that is served
        else:
            ring.extendleft(reversed(able))
        return able

    def _park(self, consumer: RingMember) -> None:
        self._parkings += 1
        consumer.parked = self._parkings  # hot: written here

    def _count(self) -> None:
        self.present = bool(self._consumers) and not self.paused
        self.alone = next(iter(self._consumers)) if len(self._consumers) == 1 else None
