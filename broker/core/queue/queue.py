"""A queue: its levels, its consumers, and its rules. Its messages are in slots and nowhere else, and only a slot
manager delivers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from broker.core.arguments import queue_type
from broker.core.message.delay import HeldMessage, Unreadable, moment_of
from broker.core.message.message import Message
from broker.core.queue.consumer_ring import ConsumerRing, RingMember
from broker.core.queue.duplicates import Duplicates, digest_of
from broker.core.queue.head import QueueHead, expired_among
from broker.core.queue.holding import Holding
from broker.core.queue.level import BATCH_MESSAGES, HOLDING_PRIORITY, Level
from broker.core.queue.level_owner import LevelOwner, QueueWorker
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.queue.rules import DROP_HEAD, QUORUM, REJECT_PUBLISH_DLX, QueueRules, queue_rules
from broker.core.sliced_work import MESSAGES_PER_UNIT
from broker.event_log import get_logger
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.store.record import LEVEL_SHIFT

_log = get_logger()

SILENT_MS: Final = 60_000  # between two log lines about messages of one queue with unreadable times
DEFAULT_PRIORITY: Final = 4  # of a message without one in a strict queue. Source: RabbitMQ 4.3, rabbit_fifo
PRIORITY_MAX: Final = 31


class Queue(LevelOwner):
    """One queue of a vhost.

    Shapes: ``levels`` has one level per priority, the lowest first; ``level`` is the only one, or the lowest of a
        ``prioritized`` queue. Their numbers are consecutive, and start with the queue's own. In a ``strict`` queue
        ``level`` is that of DEFAULT_PRIORITY; the others are created at their first use. ``holding`` holds messages
        until they are due, in a separate level; it is None until the first one. Invariant: ``plain`` means that a
        publish need not check the queue's rules. ``serving`` is set while the worker delivers from the queue.
    """

    __slots__ = ("_head", "_ports", "_pressing", "_silent_until_ms", "arguments", "auto_delete", "deleted",
                 "duplicates", "exclusive_owner", "failures", "had_consumers", "holding", "level", "levels", "number",
                 "operator_policy", "plain", "policy", "serving", "timed", "worker")  # fmt: skip

    # What every message reads or writes comes first, so that it occupies few cache lines.
    worker: QueueWorker[Queue]
    level: Level
    deleted: bool
    serving: bool
    timed: bool  # some message may expire; once true it stays true, because a check costs little
    plain: bool

    kept: bool = False  # it is internal: no policy applies, and nothing is published to its name
    persists_all: bool = False  # a durable queue records its messages whatever their delivery mode
    recovered: bool = False  # its declaration was lost: no policy applies, so that no message is dropped
    holds: str = ""  # what the broker keeps in it
    is_overlay: bool = False  # its messages are for other brokers; messages from other brokers do not enter it

    def __init__(
        self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue], rules: QueueRules | None = None
    ) -> None:
        super().__init__()
        self.name = declaration.name
        self.durable = declaration.durable
        self.exclusive_owner = declaration.exclusive_owner
        self.auto_delete = declaration.auto_delete
        self.arguments = arguments = declaration.arguments
        self.number = number = declaration.number
        self.had_consumers = False
        self.deleted = False
        self.failures = 0  # workers that failed while they served it
        self.policy: str | None = None
        self.operator_policy: str | None = None
        self.rules = queue_rules(arguments) if rules is None else rules
        self.holding: Holding | None = None
        self.strict = self.laned = is_quorum = queue_type(arguments) == QUORUM
        self.consumers = ConsumerRing(single_active=self.rules.single_active, yields=is_quorum)
        self.plain = True
        self.duplicates = Duplicates() if self.rules.deduplicates else None
        self.timed = False
        self._ports = ports
        self._pressing = False  # set while its consumers are served because it is full
        self._silent_until_ms = 0  # when an unreadable time of a message is logged again
        self.serving = False
        lowest = DEFAULT_PRIORITY if is_quorum else 0
        self.levels = tuple(
            [
                ports.level_of(self, lowest + place, number + place, ports, self.persists_all or is_quorum)
                for place in range(self.rules.max_priority + 1)
            ]
        )
        self.level = self.levels[0]
        self.prioritized = len(self.levels) > 1
        self._head = QueueHead(self.levels, ports, self._head_was_read, strict=is_quorum)
        self.move_to(ports.assign(self))
        self._take_rules(self.rules)
        self.used()

    def move_to(self, worker: QueueWorker[Queue], *, failed: bool = False) -> None:
        """Assign the queue to another worker, perhaps because the last one failed with it."""
        self.failures += failed
        self.awake = self.lags = False
        self.worker = worker

    def wake_worker(self) -> None:
        """Schedule the queue for delivery in this loop turn."""
        self.worker.wake(self)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, ready={self.ready}, unacked={self.unacked})"

    @property
    def declaration(self) -> QueueDeclaration:
        """The properties with which the queue was created."""
        return QueueDeclaration(
            self.name,
            self.number,
            durable=self.durable,
            exclusive_owner=self.exclusive_owner,
            auto_delete=self.auto_delete,
            arguments=self.arguments,
            recovered=self.recovered,
        )

    @property
    def ready(self) -> int:
        """Messages that wait to be delivered."""
        if not self.prioritized:
            return self.level.manager.ready
        return sum(level.manager.ready for level in self.levels)

    @property
    def unacked(self) -> int:
        """Messages that were delivered and not yet acked."""
        return sum(level.manager.unacked for level in self.levels)

    @property
    def delayed(self) -> int:
        """Messages that wait until they are due."""
        return 0 if self.holding is None else self.holding.count

    @property
    def all_levels(self) -> Sequence[Level]:
        """The levels, and the one whose messages wait until they are due."""
        return self.levels if self.holding is None else (*self.levels, self.holding.level)

    def before(self, verb: str, session: object, *, exclusive: bool = False, room: int = 0) -> None:
        """Check that the data needed by a get, consume, declare, purge, delete or commit is here. Raises: Postponed if
        it is not. `exclusive` and `room` describe a new consumer: whether it is exclusive, and how many messages it can
        take.
        """

    def note_made(self) -> None:
        """Handle the creation of the queue, which other brokers share, by a client of this broker."""

    def counts(self) -> tuple[int, int]:
        """Return the numbers of ready messages and of consumers, for an answer to a client."""
        return self.ready, len(self.consumers)

    def held(self) -> int:
        """Return the number of unacked messages, for an answer to an operator."""
        return self.unacked

    def note_ready(self, by_priority: dict[int, int]) -> None:
        """Record the number of ready messages of each level on all nodes of a cluster."""

    def ready_by_priority(self) -> dict[int, int]:
        """Return the number of ready messages of each level, for an answer to an operator."""
        return {level.priority: ready for level in self.levels if (ready := level.manager.ready)}

    def remaining(self) -> int:
        """Return the number of ready messages, for the answer to a basic.get."""
        return self.ready

    # -- rules --------------------------------------------------------------------------------------------------------

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return whether a queue that rejects publishes has room for messages with bodies of these sizes.

        A queue whose consumers can take messages now counts as having room.
        """
        if self.consumers.able():
            return True
        return not self.rules.exceeded(self.waiting + len(sizes), self.waiting_bytes + sum(sizes))

    def redeclare(self, declaration: QueueDeclaration) -> None:
        """Set the arguments of a new declaration, whose rules are applied next."""
        self.arguments = declaration.arguments

    def apply_rules(self, rules: QueueRules, policy: str | None = None, operator_policy: str | None = None) -> bool:
        """Set the rules from the current policies, with their names; return whether the rules have changed. If so,
        `settle_in` must follow.

        Invariant: the levels, and whether one consumer is active at a time, stay those of the declaration.
        """
        self.policy, self.operator_policy = policy, operator_policy
        if changed := rules != self.rules:
            self._take_rules(rules)
        return changed

    def settle_in(self) -> None:
        """Enforce changed rules."""
        if not self.deleted:
            self.used()
            self.look()
            self.enforce()

    def _take_rules(self, rules: QueueRules) -> None:
        self.rules = rules
        self.plain = (self.strict or not self.prioritized) and not rules.limited and rules.ttl_ms is None
        self.plain = self.plain and not (rules.due_headers or rules.deduplicates)
        self.timed = self.timed or rules.ttl_ms is not None
        for level in self.all_levels:
            level.limit_bytes(limited=rules.max_bytes is not None)

    def used(self) -> None:
        """Postpone the expiry of an unused queue, because a consumer, basic.get or declare has used it."""
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

    def level_for(self, message: Message) -> Level:
        """Return the level of a message's priority."""
        levels, priority = self.levels, message.facts.priority
        if self.strict:
            return self.level if priority < 0 else self.level_at(priority)
        return levels[min(max(priority, 0), len(levels) - 1)]

    def level_at(self, priority: int) -> Level:
        """Return the level of a priority of a strict queue, creating it if necessary.

        Source: RabbitMQ 4.3, rabbit_fifo: a higher priority means the highest one.
        """
        priority = min(priority, PRIORITY_MAX)
        for level in self.levels:
            if level.priority == priority:
                return level
        made = self._ports.level_of(self, priority, _number_at(self.number, priority), self._ports, True)
        made.limit_bytes(limited=self.rules.max_bytes is not None)
        self.levels = tuple(sorted((*self.levels, made), key=attrgetter("priority")))
        self.prioritized = True
        self._head.take_levels(self.levels)
        return made

    def level_numbered(self, number: int) -> Level | None:
        """Return the level with the queue's own number or one of its levels' numbers, creating it if necessary."""
        priority = (number >> LEVEL_SHIFT) - 1
        if priority < 0:
            return self.level
        if priority == HOLDING_PRIORITY:
            return self.hold().level
        return self.level_at(priority) if self.strict and priority <= PRIORITY_MAX else None

    def use_level(self, number: int) -> None:
        """Create the level with a number, if the queue may have it and does not have it yet."""
        if not self.deleted:
            self.level_numbered(number)

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all levels that it has or may get."""
        if not self.strict:
            return [level.number for level in self.levels]
        return numbers_of(self.number)

    def hold(self) -> Holding:
        """Return the holding of the queue's delayed messages, creating it if necessary."""
        holding = self.holding
        if holding is None:
            persists_all = self.persists_all or self.strict
            number = _number_at(self.number, HOLDING_PRIORITY)
            level = self._ports.level_of(self, HOLDING_PRIORITY, number, self._ports, persists_all)
            level.limit_bytes(limited=self.rules.max_bytes is not None)
            holding = self.holding = self._ports.holding_of(self, level)
            self.laned = True
            self._head.use_lane()
        return holding

    def due_ms_of(self, message: Message) -> int | None:
        """Return when a message with a time in a due header is due, None if it is due now. A message with an unreadable
        time is due now.
        """
        headers = self.rules.due_headers
        if not headers:
            return None
        clock = self._ports.clock
        try:
            due_ms = moment_of(headers, message.header, message.timestamp_ms, clock.ahead_ms)
        except Unreadable as error:
            if clock.now_ms >= self._silent_until_ms:
                self._silent_until_ms = clock.now_ms + SILENT_MS
                _log.warning("message.not_held", queue=self.name, reason=str(error))
            return None
        return None if due_ms is None or due_ms <= clock.now_ms else due_ms

    def keep_until(
        self, message: Message, due_ms: int, returns: ReturnRun | None = None, *, number: bytes = b""
    ) -> None:
        """Hold a message until it is due. Shapes: `number` and `returns` as of `Holding.keep`."""
        waiting = HeldMessage(message, due_ms)
        slot, index = self.hold().keep(waiting, due_ms, number, returns)
        if self.duplicates is not None:
            self.note_at(slot, index, waiting)

    def came_due(self, level: Level, slot: Slot, index: int, message: Message) -> None:
        """Deliver a message that has become due, and is in the queue again, before all others."""
        self._head.put_last(level.priority, slot, (index,))
        if self.duplicates is not None:
            self.note_at(slot, index, message)
        if not self.plain or message.facts.expiration_ms is not None:
            self.accepted(message)

    def admits(self, message: Message, *, dead_letter: bool = True) -> bool:
        """Return whether the queue accepts a message: a full queue that rejects publishes does not.

        With reject-publish-dlx and `dead_letter` the message is dead-lettered instead.
        """
        rules = self.rules
        if rules.overflow == DROP_HEAD or not rules.limited or not self._full_with(message):
            return True
        self._serve()  # waiting consumers make room before a publisher is refused
        if not self._full_with(message):
            return True
        if dead_letter and rules.overflow == REJECT_PUBLISH_DLX:
            self._ports.dead_letter(self, message, "maxlen")
        return False

    def _full_with(self, message: Message) -> bool:
        return self.rules.exceeded(self.waiting + 1, self.waiting_bytes + len(message.body))

    @property
    def waiting(self) -> int:
        """The number of messages that count for a limit of the queue: ready ones, and those held until they are due."""
        return self.ready if self.holding is None else self.ready + self.holding.count

    @property
    def waiting_bytes(self) -> int:
        """The total body size of these messages; counted only while a limit needs it."""
        return sum(level.manager.ready_bytes for level in self.all_levels)

    def repeats(self, message: Message) -> bool:
        """Return whether a deduplicating queue has a message with the same header; if so, it drops this one."""
        digest = self.digest(message)
        if digest is None:
            return False
        for level in self.levels:
            if level.before_next is not None:  # a message on its way
                level.go_before()
        return self._stops(digest)

    def _stops(self, digest: bytes) -> bool:
        known = self.duplicates
        if known is None or not known.knows(digest, self._ports.clock.now_ms):
            return False
        known.count_dropped()
        return True

    def note_taken(self, message: Message) -> None:
        """Record a message that a deduplicating queue has just accepted."""
        manager = self.level_for(message).manager
        message_id = manager.next_id - 1
        slot = next(slot for slot in reversed(manager.slots.values()) if slot.first <= message_id)
        self.note_at(slot, message_id - slot.first, message)

    def note_at(self, slot: Slot, index: int, message: Message) -> None:
        """Record the place of a message in a deduplicating queue."""
        digest = self.digest(message)
        if digest is not None and self.duplicates is not None:
            expires_ms = None if isinstance(message, HeldMessage) else self.expires_ms(message)
            self.duplicates.note(digest, slot, index, expires_ms, self._ports.clock.now_ms)

    def digest(self, message: Message) -> bytes | None:
        """Return the digest of the deduplication header, None without it."""
        return digest_of(message)

    def accepted(self, message: Message) -> None:
        """Apply the rules after one of the levels accepted a message."""
        expires_ms = self.expires_ms(message)
        if expires_ms is not None:
            self.timed = True
            if expires_ms <= self._ports.clock.now_ms:
                self._serve()  # a waiting consumer gets it, even if its time to live is 0
            if not self.consumers.able():
                self.look()
            else:
                standing_ms = self._ports.deadlines.at_ms(self)
                if standing_ms is None or expires_ms < standing_ms:
                    self._ports.deadlines.set(self, expires_ms, self.look)
        self.enforce()

    def note_returned(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Deliver returned messages of a strict queue before all others."""
        if self.strict:
            self._head.put_last(priority, slot, indexes)

    def find_returned(self) -> None:
        """Deliver messages returned before a restart first: by priority, then by age."""
        if self.laned:
            for level in reversed(self.levels):
                for slot in level.manager.slots.values():
                    if slot.redeliveries is not None and (indexes := slot.ready_again()):
                        self._head.put_last(level.priority, slot, indexes)

    def put_back(self, level: Level, slot: Slot, indexes: Sequence[int]) -> None:
        """Put back messages that were taken but not sent, so that they are next again."""
        level.manager.put_back(slot, indexes)
        if self.laned:
            self._head.put_back(level.priority, slot, indexes)

    def returned(self) -> None:
        """Apply the rules to returned messages, and deliver them again."""
        self._drop_over()
        if self.timed:
            self.look()
        self.wake()

    # -- limits -------------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        """Drop messages from the head until the queue is within its limits or the turn's share is used up. In the
        latter case publishers wait for the next turn, so the queue cannot grow meanwhile.
        """
        if not self._over():
            return
        self._serve()
        if self._drop_over() and self.timed:
            self.look()  # another message is at the head now

    def _drop_over(self) -> bool:
        """Drop messages that exceed the limits, and return whether any was dropped."""
        rules, deadlines = self.rules, self._ports.deadlines
        dropped = 0
        while self._over() and not self.deleted:
            if deadlines.left <= 0:
                deadlines.set(("limits", self), self._ports.clock.now_ms, self.enforce)
                break
            batch = 1 if rules.max_bytes is not None else BATCH_MESSAGES
            excess = batch if rules.max_length is None else max(self.waiting - rules.max_length, 1)
            held = None if self.ready or self.holding is None else self.holding.level
            read = rules.dead_letter_exchange is not None
            count = self._head.drop(min(excess, batch), "maxlen", read=read, held=held)
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

    # -- expiry -------------------------------------------------------------------------------------------------------

    def expires_ms(self, message: Message) -> int | None:
        """Return the moment at which a message of this queue expires, None when it does not."""
        ttl_ms = self.rules.ttl_ms
        own_ms = message.facts.expiration_ms
        if own_ms is None:
            return None if ttl_ms is None else message.timestamp_ms + ttl_ms
        return message.timestamp_ms + (own_ms if ttl_ms is None else min(own_ms, ttl_ms))

    def look(self) -> bool:
        """Drop expired messages at the head, and schedule the next check. Return False if this continues in the next
        turn, because the share of this one is used up. A message expires at the head only, as in RabbitMQ's classic
        queues. Slots read for this stay in memory.
        """
        deadlines, now_ms = self._ports.deadlines, self._ports.clock.now_ms
        at_ms = self._head.drop_expired(self.expires_ms, now_ms) if self.timed else None
        if at_ms is None:
            deadlines.cancel(self)
            return True
        deadlines.set(self, at_ms, self.look)
        return at_ms > now_ms

    def look_at(self, at_ms: int) -> None:
        """Schedule a check of the head at a moment, because some message may expire."""
        self.timed = True
        self._ports.deadlines.set(self, at_ms, self.look)

    def drop_expired(self, level: Level, slot: Slot, indexes: Sequence[int]) -> Sequence[int]:
        """Drop the expired ones among taken messages, and return the others. A waiting consumer gets a message at once,
        whatever its time to live.
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
        level.dead_letter(slot, expired, "expired")
        return left

    def _head_was_read(self) -> None:
        self.look()  # whichever of the two waited for it
        self.enforce()

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: RingMember) -> None:
        """Add a consumer after those of its priority."""
        self.consumers.add(consumer)
        self.had_consumers = True
        self.used()
        self.wake()

    def remove_consumer(self, consumer: RingMember) -> None:
        """Remove a consumer; after the last one, return the leases to the slot manager."""
        self.consumers.remove(consumer)
        if self.consumers:
            self.wake()  # another one may be the active one now
        else:
            for level in self.levels:
                level.manager.give_back_all(self.worker.owner)
            self.used()

    @property
    def paused(self) -> bool:
        """Whether consumers and basic.get receive nothing until an operator resumes the queue."""
        return self.consumers.paused

    def pause(self) -> None:
        """Deliver nothing until `resume`, and return the leases to the slot manager; everything else continues."""
        self.consumers.pause()
        for level in self.levels:
            level.manager.give_back_all(self.worker.owner)

    def resume(self) -> None:
        """Deliver again."""
        self.consumers.resume()
        self.wake()

    def lease(self) -> tuple[Level, Slot] | None:
        """Lease the slot with the next message, of the highest level that has one, to the worker."""
        owner = self.worker.owner
        if self.prioritized or self.laned:
            return self._head.lease(owner)
        level = self.level
        if level.returning:
            level.catch_up()
        slot = level.manager.get(owner) if level.manager.ready else None
        return None if slot is None else (level, slot)

    def take(self, level: Level, slot: Slot, limit: int) -> Sequence[int]:
        """Take up to `limit` messages of the slot that `lease` returned."""
        return self._head.take(level, slot, limit) if self.laned else level.manager.take(slot, limit)

    def wake(self) -> None:
        """Schedule the queue for delivery when it has messages and consumers."""
        if not self.awake and self.consumers and self.ready:
            self.wake_worker()

    def serve_first(self) -> int:
        """Deliver before a method that would see the messages, and return the number delivered."""
        return self.worker.serve_first(self)

    def purge(self, done: Callable[[int], None]) -> None:
        """Drop the ready messages, in this turn and later ones, and report their number; unacked messages stay. The
        drops are logged by then.
        """
        dropped: list[int] = []
        self._ports.sliced.run(self._purge_slots(dropped), lambda: self._end_purge(dropped, done))

    def _purge_slots(self, dropped: list[int]) -> Iterator[int]:
        """Purge slot by slot, count the messages, and yield the cost in units of the turn's share."""
        for level in self.all_levels:
            for count in level.purge():
                dropped.append(count)
                yield 1 + count // MESSAGES_PER_UNIT

    def _end_purge(self, dropped: list[int], done: Callable[[int], None]) -> None:
        settled = self._ports.settled
        while settled:
            settled.pop().log_settlements()
        done(sum(dropped))

    def delete(self) -> int:
        """Cancel the consumers, drop everything and return the number of ready messages."""
        count = self.ready
        self.deleted = True
        self.exclusive_owner = None  # what still knows the queue, such as a cached route, does not keep its connection
        for consumer in self.consumers.clear():
            consumer.cancelled_by_broker()
        for level in self.all_levels:
            level.delete()
        if self.holding is not None:
            self.holding.close()
            self.holding = None
        for key in (self, ("unused", self), ("limits", self)):
            self._ports.deadlines.cancel(key)
        self._ports.retire(self)
        self._let_go()
        return count

    def _let_go(self) -> None:
        """Clear the references that lead back to the queue, so that it is freed with its last reference."""
        self.level = Level.ended(self._ports)
        self.levels = (self.level,)
        self._head.end(self.level)


def _number_at(queue_number: int, priority: int) -> int:
    """Return the number of a level of a strict queue; the default level has the queue's own number."""
    return queue_number if priority == DEFAULT_PRIORITY else (priority + 1) << LEVEL_SHIFT | queue_number


def numbers_of(queue_number: int) -> list[int]:
    """Return the numbers of the levels of a strict queue, the queue's own first."""
    others = [priority for priority in range(PRIORITY_MAX + 1) if priority != DEFAULT_PRIORITY]
    return [_number_at(queue_number, priority) for priority in (DEFAULT_PRIORITY, *others)]
