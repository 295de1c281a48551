"""Queues that several brokers share.

Each node has a queue object with its own consumers and the messages leased to it. Facts about the whole queue that a
client requests, such as its counts, are read from PostgreSQL before the method runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from broker.amqp.errors import ChannelError
from broker.cluster.consumer_registry import ConsumerRegistry
from broker.cluster.data_path import DataPath
from broker.cluster.errors import ClusterError
from broker.cluster.queue_inquiries import QueueInquiries, UnusedQueues
from broker.cluster.shared_level import BRIEF_MS, SharedLevel
from broker.core.message.delay import due_ms_of
from broker.core.message.message import Message
from broker.core.names import Resource
from broker.core.policy.policy_definition import DISABLED
from broker.core.postponed import Postponed
from broker.core.queue.consumer_ring import RingMember
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.queue.rules import QueueRules, queue_rules
from broker.core.session.client import SessionClient

HOLDING_KEYS: Final = ("delayed-retry-type", "hold-until-header")
NO_HOLDING: Final = "is not available in a cluster: its queues hold no messages until they are due"
FRESH_MS: Final = 1000  # how long an answer that was requested ahead of its method is valid

Ask: TypeAlias = "Callable[[Callable[..., None]], None]"


class Asked(Postponed):
    """A method that is postponed until PostgreSQL has answered its question about a queue."""

    def __init__(self, queue: SharedQueue, verb: str, session: object, ask: Ask, answer: Any = None) -> None:
        """`ask` sends the question, and calls back with the answer."""
        super().__init__()
        self.queue = queue
        self.verb = verb
        self.answer = answer
        self._session = session
        self._ask = ask
        self._along: list[Asked] = []

    def begin(self, then: Callable[[], None]) -> None:
        """Send the questions of this method, and of those added by `combine_with`."""
        for other in self._along:
            other.begin(lambda: None)
        self._ask(partial(self._answered, then))

    def combine_with(self, other: Postponed) -> bool:
        """Add the question of a declaration that follows this one; return False for any other method."""
        if not isinstance(other, Asked) or self.verb != "declare" or other.verb != "declare":
            return False
        self._along.append(other)
        return True

    def _answered(self, then: Callable[[], None], answer: Any = None) -> None:
        self.answer = answer
        if isinstance(answer, ClusterError):
            self.refusal = str(answer)
            then()
            return
        if not isinstance(self._session, SessionClient):  # a command
            self.queue.note_answer(self)
        elif self not in self._session.postponed:  # a method added by `combine_with`
            self.queue.note_answer(self, FRESH_MS)
        then()


@dataclass(frozen=True, slots=True)
class QueueParts:
    """The parts of a node that its queues use; ``unused`` reports the uses of queues that expire when unused."""

    data: DataPath
    inquiries: QueueInquiries
    consumers: ConsumerRegistry
    unused: UnusedQueues


class SharedQueue(Queue):
    """One queue, as this node sees it.

    Units: ``ready`` and ``unacked`` are the messages that are leased to this node.
    Invariant: PostgreSQL decides which messages a queue with limits accepts, and it or the queue's keeper drops excess
        ones; so limits have no effect here.
    """

    __slots__ = ("_by_priority", "_counted", "_noted", "_noted_until_ms", "_parts", "_purged", "_vhost_name")

    def __init__(
        self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue], *, parts: QueueParts, vhost_name: str
    ) -> None:
        assert not declaration.recovered, "the declarations are in PostgreSQL"
        self._parts = parts
        self._vhost_name = vhost_name
        self._counted: tuple[int, int, int] | None = None  # ready, consumers and unacked, as last read for a method
        self._by_priority: dict[int, int] | None = None
        self._purged = 0
        self._noted: Asked | None = None
        self._noted_until_ms = math.inf
        super().__init__(declaration, ports)
        self.timed = True  # a leased message may expire

    def _set_rules(self, rules: QueueRules) -> None:
        """Set the rules, except those about holding messages, which policies and arguments may not request."""
        super()._set_rules(replace(rules, retry=None, due_headers=()))

    # -- questions of methods -----------------------------------------------------------------------------------------

    def prepare_for(self, verb: str, session: object, *, exclusive: bool = False, room: int = 0) -> None:
        """Check that the data that a method needs has been read. Raises: Postponed until then; ChannelError 403 if a
        consumer is refused.
        """
        asked = self._find_answer(verb, session)
        match verb:
            case "get":
                # The message with the highest priority may be free. Messages requeued into a full queue exceed a limit.
                returned = self.rules.limited and not self.consumers
                ranks = self.strict or self.prioritized
                if asked is None and not self.paused and (not self.ready or ranks or returned):
                    raise Asked(self, verb, session, partial(self._parts.inquiries.fetch, self))
            case "consume":
                if asked is None:
                    raise Asked(self, verb, session, partial(self._parts.consumers.register, self, exclusive, room))
                if not asked.answer:
                    raise ChannelError(403, f"queue '{self.name}' in vhost '{self._vhost_name}' in exclusive use")
            case "purge":
                if asked is None:
                    raise Asked(self, verb, session, partial(self._parts.inquiries.purge, self))
                self._purged = asked.answer
            case _:  # declare, delete
                if asked is None:
                    raise Asked(self, verb, session, partial(self._parts.inquiries.count, self))
                self._counted = asked.answer

    def _find_answer(self, verb: str, session: object) -> Asked | None:
        """Return the answer for the running method or command, or None if it must be requested."""
        for postponed in session.postponed if isinstance(session, SessionClient) else ():
            if isinstance(postponed, Asked) and postponed.queue is self and postponed.verb == verb:
                return postponed
        asked, self._noted = self._noted, None
        if asked is None or asked.verb != verb or self._ports.clock.now_ms > self._noted_until_ms:
            return None
        return asked

    def note_answer(self, asked: Asked, fresh_ms: float = math.inf) -> None:
        """Keep an answer for a command, which runs again, or for a method that follows soon."""
        self._noted = asked
        self._noted_until_ms = self._ports.clock.now_ms + fresh_ms

    def note_made(self) -> None:
        """Record that this node has just created the queue, so that its declaration does not ask for counts."""
        count = partial(self._parts.inquiries.count, self)
        self.note_answer(Asked(self, "declare", None, count, (0, 0, 0)), FRESH_MS)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of ready messages and consumers on all nodes, or on this one until they are read."""
        return super().counts() if self._counted is None else self._counted[:2]

    def ready_by_priority(self) -> dict[int, int]:
        """Return the number of ready messages of each level on all nodes, as counted last; until then, on this one."""
        return super().ready_by_priority() if self._by_priority is None else self._by_priority

    def note_ready(self, by_priority: dict[int, int]) -> None:
        """Record the number of ready messages of each level on all nodes."""
        self._by_priority = {priority: count for priority, count in by_priority.items() if count}

    def level_at(self, priority: int) -> Level:
        """Return the level of a priority, creating it if necessary; other nodes may already have messages of it."""
        known = len(self.levels)
        level = super().level_at(priority)
        if len(self.levels) > known and isinstance(level, SharedLevel) and isinstance(self.level, SharedLevel):
            level.set_elsewhere(self.level.elsewhere)
            self._parts.data.touch(self)
        return level

    def held(self) -> int:
        """Return the number of unacked messages on all nodes, or on this one until `prepare_for` reads it."""
        return super().held() if self._counted is None else self._counted[2]

    def remaining(self) -> int:
        """Return the number of ready messages on all nodes, as of the last fetch and the last heartbeats."""
        elsewhere = self._parts.inquiries.elsewhere
        shared = [level for level in self.levels if isinstance(level, SharedLevel)]
        return self.ready + sum([level.demand.remaining + elsewhere.get(level.number, 0) for level in shared])

    def purge(self, done: Callable[[int], None]) -> None:
        """Drop this node's ready messages, and report their number plus that of the purged free messages."""
        purged, self._purged = self._purged, 0
        super().purge(lambda count: done(count + purged))

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: RingMember) -> None:
        """Add a consumer, and ask for messages."""
        super().add_consumer(consumer)
        self._parts.data.touch(self)

    def remove_consumer(self, consumer: RingMember) -> None:
        """Remove a consumer; with the last one, the messages leased to this node are returned."""
        super().remove_consumer(consumer)
        self._parts.data.touch(self)
        self._parts.consumers.left(self)

    def pause(self) -> None:
        """Deliver nothing until `resume`, and return the messages leased to this node."""
        super().pause()
        self._parts.data.touch(self)

    def resume(self) -> None:
        """Continue to deliver, and ask for messages."""
        super().resume()
        self._parts.data.touch(self)

    def delete(self) -> int:
        """Drop this node's part of the queue, and return the number of its ready messages."""
        count = super().delete()
        self._parts.consumers.left(self)
        self._parts.unused.forget(self.number)
        return count

    def _drop_references(self) -> None:
        """Clear references to the queue; its levels stay, because running calls may need them."""
        for level in self.levels:
            if isinstance(level, SharedLevel):
                level.disown()
        self._lane = None
        self._noted = None

    def abandoned(self) -> None:
        """Delete an auto-delete queue, because its last consumer on all nodes has been removed."""
        if self.auto_delete and not self.deleted:
            self._ports.unused(self)

    def wake(self) -> None:
        """Schedule the queue for delivery, or ask for free messages, because consumers may have room."""
        if self.ready:
            super().wake()
        elif self.consumers:
            self._parts.data.ask(self)

    # -- rules --------------------------------------------------------------------------------------------------------

    def used(self) -> None:
        """Record a use of the queue, which postpones its expiry on all nodes."""
        super().used()
        if self.rules.expires_ms is not None and not self.deleted:
            self._parts.unused.note(self.number)

    def _unused(self) -> None:
        expires_ms = self.rules.expires_ms
        if expires_ms is not None and not self.consumers and not self.deleted:
            self._parts.unused.ask(self.number, expires_ms, self.expire)

    def expire(self, left_ms: int) -> None:
        """Delete the queue if no node has used it for its expiry time, or check again after `left_ms`."""
        if self.deleted or self.consumers or self.rules.expires_ms is None:
            return
        if left_ms:
            self._ports.deadlines.set(("unused", self), self._ports.clock.now_ms + left_ms, self._unused)
        else:
            self._ports.unused(self)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return True, because PostgreSQL decides when a transaction is committed."""
        return True

    def admits(self, message: Message, *, dead_letter: bool = True) -> bool:
        """Return True, because PostgreSQL decides when the message is committed."""
        return True

    def accepted(self, message: Message) -> None:
        """Drop expired messages at the head of this node's part of the queue."""
        self.check_expiry()

    def expires_ms(self, message: Message) -> int | None:
        """Return when a message expires, or None if never; a time to live of 0 is extended to BRIEF_MS."""
        at_ms = super().expires_ms(message)
        return at_ms + BRIEF_MS if at_ms == message.timestamp_ms else at_ms

    def due_ms(self, message: Message) -> int | None:
        """Return when the keeper must check a message, or None if never."""
        return self.expires_ms(message)

    def enforce(self) -> None:
        """Do nothing, because the keeper drops excess messages."""

    def _drop_over(self) -> bool:
        return False


class SharedHoldingQueue(SharedQueue):
    """The queue that holds the delayed messages of one exchange."""

    __slots__ = ("_send",)

    is_internal = True
    persists_all = True

    def release_by(self, send: Callable[[Message], None]) -> None:
        """Set the function that routes a due message."""
        self._send = send

    def release(self, message: Message) -> None:
        """Route a due message; the keeper settles it."""
        self._send(message)

    def expires_ms(self, message: Message) -> None:
        """Return None, because nothing expires here."""

    def due_ms(self, message: Message) -> int:
        """Return when a message is due."""
        return due_ms_of(message)


def refuse_policies(policies: Iterable[Mapping[str, Any]]) -> None:
    """Refuse policies that make queues hold messages. Shapes: as in the definitions. Raises: ValueError."""
    for row in policies:
        definition = row.get("value", row).get("definition") or {}
        for key in HOLDING_KEYS:
            if definition.get(key, DISABLED) != DISABLED:
                raise ValueError(f"'{key}' of policy '{row['name']}' {NO_HOLDING}")


def refuse_arguments(vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a queue whose arguments ask for a delayed retry. Raises: ChannelError 406."""
    if queue_rules(arguments).retry is not None:
        resource = Resource("queue", vhost, name)
        raise ChannelError(406, f"invalid arg 'x-delayed-retry-type' for {resource}: \"it {NO_HOLDING}\"")
