"""A queue: its streams, its consumers, and the rules that hold for it.

Its messages are in slots and nowhere else; whoever wants one asks a slot manager for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final

from broker.core.arguments import queue_type
from broker.core.message.message import Message
from broker.core.queue.consumer_ring import ConsumerRing, RingMember
from broker.core.queue.expiry import expired_among
from broker.core.queue.ports import QueuePorts, QueueWorker
from broker.core.queue.rules import DROP_HEAD, QUORUM, REJECT_PUBLISH_DLX, QueueRules, queue_rules
from broker.core.queue.stream import Stream
from broker.routing.bundle import Destination
from broker.routing.exchange import Exchange
from broker.slots.slot import Slot

__all__ = ["Queue"]

BATCH_MESSAGES: Final = 100  # so many are dropped between two looks at the share of the turn


class Queue(Destination[Exchange]):
    """One queue of a vhost.

    Shapes: ``streams`` has one stream per priority level, the lowest first; ``stream`` is the only one, or the lowest.
    Invariant: ``plain`` says that a publish need not look at the queue's rules; ``awake`` is set while the worker has
        it on its list, ``serving`` while it hands out messages of it.
    """

    __slots__ = (
        "_ports",
        "_pressing",
        "_reading",
        "arguments",
        "auto_delete",
        "awake",
        "consumers",
        "deleted",
        "durable",
        "exclusive_owner",
        "failures",
        "had_consumers",
        "name",
        "number",
        "operator_policy",
        "plain",
        "policy",
        "rules",
        "serving",
        "streams",
        "timed",
        "wake_worker",
        "worker",
    )

    kept: bool = False  # the broker has it for itself: no policy holds for it, and nothing is published to its name
    persists_all: bool = False  # messages are recorded whatever their delivery mode, if it is durable
    recovered: bool = False  # its own declaration was lost: no policy holds for it, so that nothing of it goes
    is_tap: bool = False  # it only listens: a message that reached nothing else was unroutable

    def __init__(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: dict[str, Any],
        number: int,
        ports: QueuePorts[Stream, Queue],
        rules: QueueRules | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.number = number
        self.had_consumers = False
        self.deleted = False
        self.awake = False
        self.failures = 0  # how many workers it has ended
        self.policy: str | None = None
        self.operator_policy: str | None = None
        self.rules = queue_rules(arguments) if rules is None else rules
        self.consumers = ConsumerRing(single_active=self.rules.single_active)
        self.plain = True
        self.timed = False  # some message of it may expire; once true it stays so, the look costs little
        self._ports = ports
        self._reading = False  # the rules wait for a slot from disk
        self._pressing = False  # its consumers are served because it is full
        self.serving = False
        persists_all = self.persists_all or queue_type(arguments) == QUORUM
        self.streams = tuple(
            Stream(self, level, number + level, ports, persists_all=persists_all)
            for level in range(self.rules.max_priority + 1)
        )
        self.move_to(ports.assign(self))
        self._take_rules(self.rules)
        self.used()

    def move_to(self, worker: QueueWorker[Queue]) -> None:
        """Let another worker deliver the messages of the queue."""
        self.awake = False
        self.worker = worker
        self.wake_worker = partial(worker.wake, self)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, ready={self.ready}, unacked={self.unacked})"

    @property
    def stream(self) -> Stream:
        """The only stream, or that of the lowest level."""
        return self.streams[0]

    @property
    def levels(self) -> int:
        """How many numbers it takes in the store, from its own on."""
        return len(self.streams)

    @property
    def ready(self) -> int:
        """Messages that wait to be delivered."""
        streams = self.streams
        return streams[0].manager.ready if len(streams) == 1 else sum(stream.manager.ready for stream in streams)

    @property
    def unacked(self) -> int:
        """Messages that were delivered and not yet acked."""
        return sum(stream.manager.unacked for stream in self.streams)

    @property
    def ready_bytes(self) -> int:
        """What the bodies of the ready messages amount to, as far as a limit makes it counted."""
        return sum(stream.manager.ready_bytes for stream in self.streams)

    # -- rules --------------------------------------------------------------------------------------------------------

    def apply_rules(self, rules: QueueRules, policy: str | None = None, operator_policy: str | None = None) -> bool:
        """Take the rules that policies give now, with their names; return whether the rules have changed.

        If they have, `settle_in` is to follow.

        Invariant: its levels, and whether one consumer is active at a time, are of its declaration.
        """
        self.policy, self.operator_policy = policy, operator_policy
        if changed := rules != self.rules:
            self._take_rules(rules)
        return changed

    def settle_in(self) -> None:
        """Bring the queue within rules that are new to it."""
        if not self.deleted:
            self.used()
            self.look()
            self.enforce()

    def _take_rules(self, rules: QueueRules) -> None:
        self.rules = rules
        self.plain = len(self.streams) == 1 and not rules.limited and rules.ttl_ms is None
        self.timed = self.timed or rules.ttl_ms is not None
        for stream in self.streams:
            counting = stream.manager.size_of is not None
            if rules.max_bytes is not None and not counting:
                stream.count_sizes(Message.body_bytes)
            elif rules.max_bytes is None and counting:
                stream.manager.count_no_sizes()

    def used(self) -> None:
        """Put off the end of a queue that expires when nobody uses it: a consumer, basic.get and a declare are use."""
        deadlines = self._ports.deadlines
        expires_ms = self.rules.expires_ms
        if expires_ms is None or self.consumers or self.deleted:
            deadlines.cancel(("unused", self))
        else:
            deadlines.set(("unused", self), self._ports.clock.now_ms + expires_ms, self._unused)

    def _unused(self) -> None:
        if not self.consumers and not self.deleted:
            self._ports.unused(self)

    # -- accept -------------------------------------------------------------------------------------------------------

    def stream_for(self, message: Message) -> Stream:
        """Return the stream of a message's priority level."""
        streams = self.streams
        return streams[min(message.facts.priority, len(streams) - 1)]

    def admits(self, message: Message, *, bury: bool = True) -> bool:
        """Return whether the queue takes a message: a full one that rejects publishes does not.

        With reject-publish-dlx it is dead-lettered instead, where `bury` says so.
        """
        rules = self.rules
        if rules.overflow == DROP_HEAD or not rules.limited or not self._full_with(message):
            return True
        self._serve()  # consumers that wait leave room before a publisher is told that there is none
        if not self._full_with(message):
            return True
        if bury and rules.overflow == REJECT_PUBLISH_DLX:
            self._ports.bury(self, message, "maxlen")
        return False

    def _full_with(self, message: Message) -> bool:
        return self.rules.exceeded(self.ready + 1, self.ready_bytes + len(message.body))

    def accepted(self, message: Message) -> None:
        """Do what the rules ask once a message was accepted by one of the streams."""
        expires_ms = self.expires_ms(message)
        if expires_ms is not None:
            self.timed = True
            if expires_ms <= self._ports.clock.now_ms:
                self._serve()  # a consumer that waits has it, even if its time is 0
            if not self.consumers.able():
                self.look()
            else:
                standing_ms = self._ports.deadlines.at_ms(self)
                if standing_ms is None or expires_ms < standing_ms:
                    self._ports.deadlines.set(self, expires_ms, self.look)
        self.enforce()

    def returned(self) -> None:
        """Do what the rules ask once messages came back, and has them delivered again."""
        self._drop_over()
        if self.timed:
            self.look()
        self.wake()

    # -- limits -------------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        """Drop messages from the head until the queue is within its limits; a share of them at a time.

        Publishers wait for the next turn when the share is used up, so it cannot grow meanwhile.
        """
        if not self._over():
            return
        self._serve()
        if self._drop_over() and self.timed:
            self.look()  # another message is at the head now

    def _drop_over(self) -> bool:
        """Drop what is over the limits, and return whether that was something."""
        rules, deadlines = self.rules, self._ports.deadlines
        dropped = 0
        while self._over() and not self.deleted:
            stream, slot = self._head()
            assert slot is not None
            if rules.dead_letter_exchange is not None and self._waits_for(stream, slot):
                break
            if deadlines.left <= 0:
                deadlines.set(("limits", self), self._ports.clock.now_ms, self.enforce)
                break
            batch = 1 if rules.max_bytes is not None else BATCH_MESSAGES
            excess = batch if rules.max_length is None else max(self.ready - rules.max_length, 1)
            indexes = stream.manager.take(slot, min(excess, batch))
            dropped += len(indexes)
            deadlines.spend(len(indexes))
            stream.bury(slot, indexes, "maxlen")
        return dropped > 0

    def _over(self) -> bool:
        rules = self.rules
        return rules.overflow == DROP_HEAD and rules.exceeded(self.ready, self.ready_bytes)

    def _serve(self) -> None:
        if not self.serving and not self.deleted and self.consumers.able():
            self._pressing = True
            try:
                self.worker.serve(self)
            finally:
                self._pressing = False

    # -- expiry -------------------------------------------------------------------------------------------------------

    def expires_ms(self, message: Message) -> int | None:
        """Return the moment at which a message of this queue expires, None when it does not."""
        ttl_ms = self.rules.ttl_ms
        own_ms = message.facts.expiration_ms
        if own_ms is None:
            return None if ttl_ms is None else message.timestamp_ms + ttl_ms
        return message.timestamp_ms + (own_ms if ttl_ms is None else min(own_ms, ttl_ms))

    def look(self) -> bool:
        """Drop what has expired at the head, and looks again when the next head is due.

        Tells False when it goes on in the next turn, because the share of this one is used up.
        A message expires at the head only, as in RabbitMQ's classic queues. One that was read for that stays in memory.
        """
        deadlines, now_ms = self._ports.deadlines, self._ports.clock.now_ms
        at_ms: int | None = None
        while self.timed and not self.deleted:
            stream, slot = self._head()
            if slot is None or self._waits_for(stream, slot):
                break
            at_ms = next(self._moments_ms(slot, slot.front(1)))
            if at_ms is None or at_ms > now_ms:
                break
            if deadlines.left <= 0:
                deadlines.set(self, now_ms, self.look)
                return False
            moments_ms = self._moments_ms(slot, slot.front(BATCH_MESSAGES))
            expired = len(list(takewhile(lambda moment: moment is not None and moment <= now_ms, moments_ms)))
            deadlines.spend(expired)
            stream.bury(slot, stream.manager.take(slot, expired), "expired")
            at_ms = None
        if at_ms is None:
            deadlines.cancel(self)
        else:
            deadlines.set(self, at_ms, self.look)
        return True

    def look_at(self, at_ms: int) -> None:
        """Drop what has expired at the head at that moment: some message may expire."""
        self.timed = True
        self._ports.deadlines.set(self, at_ms, self.look)

    def _moments_ms(self, slot: Slot, indexes: Sequence[int]) -> Iterator[int | None]:
        """Yield when each of the messages expires."""
        assert slot.contents is not None
        for index in indexes:
            message: Message | None = slot.contents[index]
            yield None if message is None else self.expires_ms(message)

    def drop_expired(self, stream: Stream, slot: Slot, indexes: Sequence[int]) -> Sequence[int]:
        """Return what of messages that were taken has not expired; the rest is dropped.

        A consumer that waited takes a message at once, whatever its time: it does not expire on the way.
        """
        if self._pressing:
            return indexes
        assert slot.contents is not None
        now_ms = self._ports.clock.now_ms
        expired = expired_among(slot.contents, indexes, self.rules.ttl_ms, self.expires_ms, now_ms)
        if not expired:
            return indexes
        gone = set(expired)
        left = [index for index in indexes if index not in gone]
        self._ports.deadlines.spend(len(expired))
        stream.bury(slot, expired, "expired")
        return left

    def _head(self) -> tuple[Stream, Slot | None]:
        """Return the highest level that has a ready message, and the slot of its lowest."""
        for stream in reversed(self.streams):
            slot = stream.manager.front()
            if slot is not None:
                return stream, slot
        return self.streams[0], None

    def _waits_for(self, stream: Stream, slot: Slot) -> bool:
        """Has a slot that lies on disk read, and tells whether it does."""
        if slot.contents is None and not self._reading:
            self._reading = True
            self._ports.read(stream, slot, self._was_read)
        return slot.contents is None

    def _was_read(self) -> None:
        self._reading = False
        self.look()  # whichever of the two had to wait
        self.enforce()

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: RingMember) -> None:
        """Add a consumer behind those of its priority."""
        self.consumers.add(consumer)
        self.had_consumers = True
        self.used()
        self.wake()

    def remove_consumer(self, consumer: RingMember) -> None:
        """Remove a consumer; the last one's leases go back to the slot manager."""
        self.consumers.remove(consumer)
        if self.consumers:
            self.wake()  # another one may be the active one now
        else:
            for stream in self.streams:
                stream.manager.give_back_all(self.worker.owner)
            self.used()

    def lease(self) -> tuple[Stream, Slot] | None:
        """Lease the slot with the next message to its worker, of the highest level that has one."""
        owner = self.worker.owner
        for stream in reversed(self.streams):
            if stream.manager.ready and (slot := stream.manager.get(owner)) is not None:
                return stream, slot
        return None

    def wake(self) -> None:
        """Has the worker look at this queue when there is something to deliver and somebody to deliver to."""
        if not self.awake and self.consumers and self.ready:
            self.wake_worker()

    def serve_first(self) -> int:
        """Deliver before a method that would see the messages, and return how many were delivered."""
        return self.worker.serve_first(self)

    # -- empty and delete ---------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop every ready message and return how many; the unacked ones stay."""
        return sum(stream.purge() for stream in self.streams)

    def delete(self) -> int:
        """Tell the consumers, drops everything and return how many messages were ready."""
        count = self.ready
        self.deleted = True
        for consumer in self.consumers.clear():
            consumer.cancelled_by_broker()
        for stream in self.streams:
            stream.delete()
        for key in (self, ("unused", self), ("limits", self)):
            self._ports.deadlines.cancel(key)
        self._ports.retire(self)
        return count
