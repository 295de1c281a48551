"""A queue: its levels, its consumers and its rules. Its messages are stored only in the slots of its levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from broker.core.message.delay import HeldMessage, Unreadable, moment_of
from broker.core.message.message import Message
from broker.core.queue.consumer_ring import RingMember
from broker.core.queue.duplicates import Duplicates, digest_of
from broker.core.queue.head import QueueHead
from broker.core.queue.holding import Holding
from broker.core.queue.level import HOLDING_PRIORITY, Level
from broker.core.queue.level_owner import QueueWorker
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.queue.rules import DROP_HEAD, QUORUM, REJECT_PUBLISH_DLX, QueueRules, queue_rules, queue_type
from broker.core.sliced_work import MESSAGES_PER_UNIT
from broker.event_log import get_logger
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.store.record import LEVEL_SHIFT

_log = get_logger()

SILENT_MS: Final = 60_000  # the least time between two log lines of a queue about unreadable due headers
DEFAULT_PRIORITY: Final = 4  # for messages without a priority in a strict queue. Source: RabbitMQ 4.3, rabbit_fifo
PRIORITY_MAX: Final = 31


class Queue(QueueHead):
    """One queue of a vhost.

    Shapes: ``levels`` are in ascending order of priority. ``level`` is the first of them, or in a ``strict`` queue the
        one of DEFAULT_PRIORITY. A strict queue creates its other levels at their first use and numbers them by
        priority; the levels of any other queue have consecutive numbers, starting with the queue's own. ``holding``
        holds messages until they are due, in a separate level; it is created when first needed. ``plain`` is set if a
        publish need not check the queue's rules.
    """

    __slots__ = ("_silent_until_ms", "arguments", "auto_delete", "duplicates", "exclusive_owner", "failures",
                 "had_consumers", "number", "operator_policy", "plain", "policy", "recovered")  # fmt: skip

    plain: bool
    is_internal: bool = False  # no policy applies, and nothing is published to its name
    persists_all: bool = False  # whether a durable queue records transient messages, too
    holds: str = ""  # a description of the contents of an internal queue
    is_overlay: bool = False  # its messages are for other brokers; messages from other brokers do not enter it

    def __init__(
        self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue], rules: QueueRules | None = None
    ) -> None:
        arguments = declaration.arguments
        rules = queue_rules(arguments) if rules is None else rules
        is_quorum = queue_type(arguments) == QUORUM
        super().__init__(declaration.name, rules, ports, durable=declaration.durable, strict=is_quorum)
        self.exclusive_owner = declaration.exclusive_owner
        self.auto_delete = declaration.auto_delete
        self.arguments = arguments
        self.number = number = declaration.number
        self.recovered = declaration.recovered  # the declaration was lost, so no policy applies
        self.had_consumers = False
        self.failures = 0  # how many workers failed while they served the queue
        self.policy: str | None = None
        self.operator_policy: str | None = None
        self.plain = True
        self.duplicates = Duplicates() if rules.deduplicates else None
        self._silent_until_ms = 0  # no unreadable due header is logged until then
        lowest = DEFAULT_PRIORITY if is_quorum else 0
        self.levels = tuple(
            [
                ports.level_of(self, lowest + place, number + place, ports, self.persists_all or is_quorum)
                for place in range(rules.max_priority + 1)
            ]
        )
        self.level = self.levels[0]
        self.prioritized = len(self.levels) > 1
        self.move_to(ports.assign(self))
        self._set_rules(rules)
        self.used()

    def move_to(self, worker: QueueWorker[Queue], *, failed: bool = False) -> None:
        """Assign the queue to a worker. `failed` is set if the former worker failed while it served the queue."""
        self.failures += failed
        self.awake = self.lags = False
        self.worker = worker

    def wake_worker(self) -> None:
        self.worker.wake(self)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, ready={self.ready}, unacked={self.unacked})"

    @property
    def declaration(self) -> QueueDeclaration:
        """The queue's declaration, with its latest arguments."""
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
    def unacked(self) -> int:
        """The number of unacked messages."""
        return sum(level.manager.unacked for level in self.levels)

    @property
    def delayed(self) -> int:
        """The number of messages that wait until they are due."""
        return 0 if self.holding is None else self.holding.count

    def prepare_for(self, verb: str, session: object, *, exclusive: bool = False, room: int = 0) -> None:
        """Prepare a get, consume, declare, purge or delete, which in a cluster may need data of other nodes.
        `exclusive` and `room` describe a new consumer: whether it is exclusive, and for how many messages it has room.
        Raises: Postponed until the data has arrived; ChannelError 403 for a refused consumer.
        """

    def counts(self) -> tuple[int, int]:
        """Return the numbers of ready messages and of consumers, for an answer to a client."""
        return self.ready, len(self.consumers)

    def held(self) -> int:
        """Return the number of unacked messages, for an answer to an operator."""
        return self.unacked

    def note_ready(self, by_priority: dict[int, int]) -> None:
        """Record the number of ready messages on all nodes of a cluster, by priority."""

    def ready_by_priority(self) -> dict[int, int]:
        """Return the number of ready messages by priority, without zeros, for an answer to an operator."""
        return {level.priority: ready for level in self.levels if (ready := level.manager.ready)}

    def remaining(self) -> int:
        """Return the number of ready messages, for the answer to a basic.get."""
        return self.ready

    # -- rules --------------------------------------------------------------------------------------------------------

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return whether a queue that rejects publishes has room for messages with bodies of these sizes. A queue whose
        consumers have room always has room.
        """
        if self.consumers.able():
            return True
        return not self.rules.exceeded(self.waiting + len(sizes), self.waiting_bytes + sum(sizes))

    def redeclare(self, declaration: QueueDeclaration) -> None:
        """Set the arguments of a new declaration; the caller applies its rules next."""
        self.arguments = declaration.arguments

    def apply_rules(self, rules: QueueRules, policy: str | None = None, operator_policy: str | None = None) -> bool:
        """Set the rules, with the names of the policies from which they result; return whether the rules have changed.
        If so, the caller must call `enforce_rules`.

        Invariant: the levels, and whether there is a single active consumer, depend only on the declaration.
        """
        self.policy, self.operator_policy = policy, operator_policy
        if changed := rules != self.rules:
            self._set_rules(rules)
        return changed

    def enforce_rules(self) -> None:
        """Apply changed rules to the messages in the queue."""
        if not self.deleted:
            self.used()
            self.check_expiry()
            self.enforce()

    def _set_rules(self, rules: QueueRules) -> None:
        self.rules = rules
        self.plain = (self.strict or not self.prioritized) and not rules.limited and rules.ttl_ms is None
        self.plain = self.plain and not (rules.due_headers or rules.deduplicates)
        self.timed = self.timed or rules.ttl_ms is not None
        for level in self.all_levels:
            level.limit_bytes(limited=rules.max_bytes is not None)

    def used(self) -> None:
        """Restart the queue's expiry after a use or a change of its rules; cancel it while there are consumers."""
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

        Source: RabbitMQ 4.3, rabbit_fifo: a priority above PRIORITY_MAX counts as PRIORITY_MAX.
        """
        priority = min(priority, PRIORITY_MAX)
        for level in self.levels:
            if level.priority == priority:
                return level
        level = self._new_level(priority, persists_all=True)
        self.levels = tuple(sorted((*self.levels, level), key=attrgetter("priority")))
        self.prioritized = True
        return level

    def _new_level(self, priority: int, *, persists_all: bool) -> Level:
        level = self._ports.level_of(self, priority, _number_at(self.number, priority), self._ports, persists_all)
        level.limit_bytes(limited=self.rules.max_bytes is not None)
        return level

    def level_numbered(self, number: int) -> Level | None:
        if self.deleted:
            return None
        priority = (number >> LEVEL_SHIFT) - 1
        if priority < 0:
            return self.level
        if priority == HOLDING_PRIORITY:
            return self.ensure_holding().level
        return self.level_at(priority) if self.strict and priority <= PRIORITY_MAX else None

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all levels that the queue has or may get, without that of the holding level."""
        if not self.strict:
            return [level.number for level in self.levels]
        return numbers_of(self.number)

    def ensure_holding(self) -> Holding:
        """Return the queue's `Holding`, creating it and its level if necessary."""
        holding = self.holding
        if holding is None:
            level = self._new_level(HOLDING_PRIORITY, persists_all=self.persists_all or self.strict)
            holding = self.holding = self._ports.holding_of(self, level)
            self.laned = True
        return holding

    def due_ms_of(self, message: Message) -> int | None:
        """Return when a message is due according to a due header, or None if it need not wait."""
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
        waiting = HeldMessage(message, due_ms)
        slot, index = self.ensure_holding().keep(waiting, due_ms, number, returns)
        if self.duplicates is not None:
            self.note_at(slot, index, waiting)

    def came_due(self, level: Level, slot: Slot, index: int, message: Message) -> None:
        """Add a due message, which has entered a level, to the end of the lane, and apply the rules."""
        self.put_last(level.priority, slot, (index,))
        if self.duplicates is not None:
            self.note_at(slot, index, message)
        if not self.plain or message.facts.expiration_ms is not None:
            self.accepted(message)

    def admits(self, message: Message, *, dead_letter: bool = True) -> bool:
        """Return whether the queue accepts a message: a full queue that rejects publishes does not.

        With reject-publish-dlx and `dead_letter`, a rejected message is dead-lettered.
        """
        rules = self.rules
        if rules.overflow == DROP_HEAD or not rules.limited or not self._full_with(message):
            return True
        self._serve()  # waiting consumers may make room
        if not self._full_with(message):
            return True
        if dead_letter and rules.overflow == REJECT_PUBLISH_DLX:
            self._ports.dead_letter(self, message, "maxlen")
        return False

    def _full_with(self, message: Message) -> bool:
        return self.rules.exceeded(self.waiting + 1, self.waiting_bytes + len(message.body))

    def repeats(self, message: Message) -> bool:
        """Return whether a queued message has the same deduplication header; if so, count `message` as dropped."""
        digest = self.digest(message)
        if digest is None:
            return False
        for level in self.levels:
            if level.before_next is not None:  # a wide publish has yet to enter the level
                level.run_before_next()
        return self.duplicates is not None and self.duplicates.stops(digest, self._ports.clock.now_ms)

    def note_taken(self, message: Message) -> None:
        """Record a message that a deduplicating queue has just accepted."""
        manager = self.level_for(message).manager
        message_id = manager.next_id - 1
        slot = next(slot for slot in reversed(manager.slots.values()) if slot.first <= message_id)
        self.note_at(slot, message_id - slot.first, message)

    def note_at(self, slot: Slot, index: int, message: Message) -> None:
        """Record the slot and index of a message in a deduplicating queue."""
        digest = self.digest(message)
        if digest is not None and self.duplicates is not None:
            expires_ms = None if isinstance(message, HeldMessage) else self.expires_ms(message)
            self.duplicates.note(digest, slot, index, expires_ms, self._ports.clock.now_ms)

    def digest(self, message: Message) -> bytes | None:
        return digest_of(message)

    def accepted(self, message: Message) -> None:
        """Apply the rules after a level has accepted a message."""
        expires_ms = self.expires_ms(message)
        if expires_ms is not None:
            self.timed = True
            if expires_ms <= self._ports.clock.now_ms:
                self._serve()  # a waiting consumer gets the message, even if its time to live is 0
            if not self.consumers.able():
                self.check_expiry()
            else:
                check_ms = self._ports.deadlines.at_ms(self)
                if check_ms is None or expires_ms < check_ms:
                    self._ports.deadlines.set(self, expires_ms, self.check_expiry)
        self.enforce()

    def note_returned(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        if self.strict:
            self.put_last(priority, slot, indexes)

    def find_returned(self) -> None:
        """Add to the lane the messages that were returned before a restart, by priority and then by age."""
        if self.laned:
            for level in reversed(self.levels):
                for slot in level.manager.slots.values():
                    if slot.redeliveries is not None and (indexes := slot.ready_again()):
                        self.put_last(level.priority, slot, indexes)

    def returned(self) -> None:
        self._drop_over()
        if self.timed:
            self.check_expiry()
        self.wake()

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: RingMember) -> None:
        self.consumers.add(consumer)
        self.had_consumers = True
        self.used()
        self.wake()

    def remove_consumer(self, consumer: RingMember) -> None:
        """Remove a consumer; if it was the last one, end the worker's leases."""
        self.consumers.remove(consumer)
        if self.consumers:
            self.wake()  # another consumer may have become the active one
        else:
            for level in self.levels:
                level.manager.end_leases(self.worker.owner)
            self.used()

    @property
    def paused(self) -> bool:
        """Whether consumers and basic.get receive nothing until an operator resumes the queue."""
        return self.consumers.paused

    def pause(self) -> None:
        """Deliver nothing until `resume`, and end the worker's leases; everything else continues."""
        self.consumers.pause()
        for level in self.levels:
            level.manager.end_leases(self.worker.owner)

    def resume(self) -> None:
        self.consumers.resume()
        self.wake()

    def lease(self) -> tuple[Level, Slot] | None:
        """Lease the slot with the next message to the queue's worker, or return None if no slot can be leased."""
        owner = self.worker.owner
        if self.prioritized or self.laned:
            return self.lease_to(owner)
        level = self.level
        if level.returning:
            level.catch_up()
        slot = level.manager.get(owner) if level.manager.ready else None
        return None if slot is None else (level, slot)

    def wake(self) -> None:
        if not self.awake and self.consumers and self.ready:
            self.wake_worker()

    def serve_first(self) -> int:
        return self.worker.serve_first(self)

    def purge(self, done: Callable[[int], None]) -> None:
        """Drop the ready and held messages over several turns, then call `done` with the number dropped."""
        dropped: list[int] = []
        self._ports.sliced.run(self._purge_slots(dropped), lambda: self._end_purge(dropped, done))

    def _purge_slots(self, dropped: list[int]) -> Iterator[int]:
        """Purge slot by slot, append the number of dropped messages to `dropped`, and yield the cost in units."""
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
        """Cancel the consumers, drop all messages and return how many were ready."""
        count = self.ready
        self.deleted = True
        self.exclusive_owner = None  # so that cached routes to the queue do not keep its connection in memory
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
        self._drop_references()
        return count

    def _drop_references(self) -> None:
        """Break the reference cycles of a deleted queue, so that it is freed without the garbage collector."""
        self.level = Level.ended(self._ports)
        self.levels = (self.level,)
        self._lane = None


def _number_at(queue_number: int, priority: int) -> int:
    """Return the number of a level of a strict queue; the default level has the queue's own number."""
    return queue_number if priority == DEFAULT_PRIORITY else (priority + 1) << LEVEL_SHIFT | queue_number


def numbers_of(queue_number: int) -> list[int]:
    """Return the numbers of the levels of a strict queue, the queue's own first, without that of the holding level."""
    others = [priority for priority in range(PRIORITY_MAX + 1) if priority != DEFAULT_PRIORITY]
    return [_number_at(queue_number, priority) for priority in (DEFAULT_PRIORITY, *others)]
