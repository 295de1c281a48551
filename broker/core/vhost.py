"""A vhost: its exchanges, queues, bindings and policies, and whoever has to be told when they change.

Knows nothing of connections, frames or permissions; the sessions ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.core.auth.users import User
from broker.core.delay.delayed import Delays
from broker.core.firehose import Firehose
from broker.core.message.message import Message
from broker.core.policy.policy import Policies
from broker.core.policy.policy_sweep import PolicySweep
from broker.core.publishing.dead_letter import DeadLetters
from broker.core.publishing.producers import ProducerLimits, Producers
from broker.core.publishing.reply_to import ReplyConsumers
from broker.core.queue.consumer import ChannelConsumers
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.rules import queue_rules
from broker.core.queue.stream import Stream
from broker.core.resource import Resource
from broker.core.topology.bindings import Bindings
from broker.core.topology.changes import Change, TopologySnapshot, restore, snapshot
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.queues import Queues
from broker.core.vhost_limits import VhostLimits
from broker.routing.cache import CacheLimits, PublishCache
from broker.routing.engine_names import AUTO
from broker.routing.exchange import Exchange
from broker.routing.pattern import PatternLimits
from broker.routing.router import Router

if TYPE_CHECKING:
    from broker.core.confirmable import Confirmable
    from broker.core.session.publish_entry import PublishEntry
    from broker.core.session.publish_target import PublishTarget

__all__ = ["Committer", "Vhost"]

Arguments = Mapping[str, Any] | None
QUEUES_AT_ONCE: Final = 32  # so many of a deleted vhost go in one turn
HEAD_INTERVAL_MS: Final = 2  # after a restart so often one queue's head is read


class Committer(Protocol):
    """What confirms publishes and transactions once they are on disk."""

    def wait(self, confirmable: Confirmable) -> None:
        """Has somebody confirmed after the next commit."""


class Vhost:
    """Holds what one vhost has.

    Invariant: `journal` hears of each change of a durable exchange, queue or binding once, in order, before the answer.
    """

    __slots__ = (
        "_cache_limits",
        "_caches",
        "_generate",
        "bindings",
        "committer",
        "connections",
        "dead_letters",
        "default_queue_type",
        "delays",
        "exchanges",
        "firehose",
        "journal",
        "limits",
        "name",
        "policies",
        "ports",
        "producers",
        "queues",
        "replies",
        "router",
        "share",
        "sweep",
    )

    def __init__(
        self,
        name: str,
        *,
        ports: QueuePorts[Stream, Queue],
        share: Callable[[ChannelConsumers], None],
        committer: Committer,
        journal: Callable[[Change], None],
        generate: Callable[[], str],
        pattern_limits: PatternLimits | None = None,
        cache_limits: CacheLimits | None = None,
        topic_index: str = AUTO,
        limits: VhostLimits | None = None,
        producer_limits: ProducerLimits | None = None,
    ) -> None:
        """Shapes: `generate` returns 22 fresh random characters, for a name that the client left out."""
        self.name = name
        self.ports = ports
        self.share = share
        self.committer = committer
        self.journal = journal
        self.limits = limits or VhostLimits()
        self.connections = 0  # how many have it open
        self.default_queue_type: str | None = None  # classic or quorum; for declares of clients that name no type
        self.sweep = PolicySweep(self, ports.clock, ports.deadlines)
        self.policies = Policies(self.sweep.begin)
        self.queues = Queues(self)
        self.exchanges = Exchanges(self, cache_limits, topic_index)
        self.router = Router(self.exchanges.get, cache_limits=cache_limits)
        self.bindings = Bindings(self, pattern_limits)
        self.delays = Delays(self)
        self.dead_letters = DeadLetters(self)
        self.replies = ReplyConsumers()
        self.firehose = Firehose(self)
        self.producers = Producers(name, ports.clock, ports.deadlines, journal, producer_limits or ProducerLimits())
        self.exchanges.predeclare()
        self._generate = generate
        self._cache_limits = cache_limits
        self._caches: dict[str, PublishCache[PublishEntry, PublishTarget]] = {}

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Return an exchange. Raises: 404."""
        return self.exchanges.find(name)

    def queue(self, name: str, owner: object) -> Queue:
        """Return a queue that this connection may use.

        Raises: 404; 405 when it is exclusive to another connection; 403 when the broker keeps it for itself.
        """
        return self.queues.find(name, owner)

    def exchange_resource(self, name: str) -> Resource:
        """Return the name of an exchange of this vhost."""
        return Resource("exchange", self.name, name)

    def queue_resource(self, name: str) -> Resource:
        """Return the name of a queue of this vhost."""
        return Resource("queue", self.name, name)

    def owned_by(self, owner: object) -> Iterable[Queue]:
        """Return the exclusive queues of a connection."""
        return self.queues.owned_by(owner)

    def new_name(self, prefix: str) -> str:
        """Return a fresh name for a queue or a consumer that the client left nameless."""
        return prefix + self._generate()

    @property
    def next_queue_number(self) -> int:
        """The number that the next queue gets, and no queue had."""
        return self.queues.next_number

    @next_queue_number.setter
    def next_queue_number(self, number: int) -> None:
        self.queues.next_number = number

    # -- exchanges, queues and bindings -------------------------------------------------------------------------------

    def declare_exchange(
        self,
        name: str,
        type: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments = None,
    ) -> Exchange:
        """Return the exchange of that name, made now or found equivalent. Raises: 403, 406, 503."""
        return self.exchanges.declare(
            name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments or {}
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. Raises: 403, 406."""
        self.exchanges.delete(name, if_unused=if_unused)

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments = None,
        owner: object = None,
    ) -> Queue:
        """Return the queue of that name, made now or found equivalent. Raises: 405, 406."""
        return self.queues.declare(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments or {}, owner=owner
        )

    def delete_queue(self, name: str, owner: object, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue and return how many messages were ready; one that does not exist had none.

        Raises: 405, 406.
        """
        queue = self.queues.deletable(name, owner, if_unused=if_unused, if_empty=if_empty)
        return 0 if queue is None else self.queues.drop(queue)

    def purge_queue(self, name: str, owner: object) -> int:
        """Drop every ready message of a queue and return how many. Raises: 404, 405."""
        return self.queues.seen(name, owner).purge()

    def queue_unused(self, queue: Queue) -> None:
        """Delete a queue that nobody used for as long as it may go unused."""
        if self.queues.get(queue.name) is queue:
            self.queues.drop(queue)

    def consumer_left(self, queue: Queue) -> bool:
        """Delete an auto-delete queue whose last consumer has left, and return whether it did."""
        return self.queues.consumer_left(queue)

    def owner_gone(self, owner: object) -> None:
        """Delete the exclusive queues of a connection that ended."""
        self.queues.owner_gone(owner)

    def bind(self, queue: str, exchange: str, key: str, arguments: Arguments = None, owner: object = None) -> None:
        """Bind a queue to an exchange. Raises: 403, 404, 405, 406."""
        self.bindings.bind_queue(queue, exchange, key, arguments or {}, owner)

    def unbind(self, queue: str, exchange: str, key: str, arguments: Arguments = None, owner: object = None) -> None:
        """Remove a binding of a queue. Raises: 403, 405."""
        self.bindings.unbind_queue(queue, exchange, key, arguments or {}, owner)

    def bind_exchange(self, destination: str, source: str, key: str, arguments: Arguments = None) -> None:
        """Bind an exchange to another. Raises: 403, 404, 406."""
        self.bindings.bind_exchange(destination, source, key, arguments or {})

    def unbind_exchange(self, destination: str, source: str, key: str, arguments: Arguments = None) -> None:
        """Remove a binding between exchanges. Raises: 403."""
        self.bindings.unbind_exchange(destination, source, key, arguments or {})

    # -- publishing ---------------------------------------------------------------------------------------------------

    def delay(self, exchange: Exchange, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Keep a message that was published to an x-delayed-message exchange for a while.

        `number` is what a producer's sequence adds to the targets.
        """
        self.delays.hold(exchange, message, delay_ms, number)

    def publish_cache(self, user: User) -> PublishCache[PublishEntry, PublishTarget]:
        """Return the cache of what this user's publishes come to; its rights are part of it."""
        cache = self._caches.get(user.name)
        if cache is None:
            cache = self._caches[user.name] = PublishCache(self._cache_limits)
        return cache

    def drop_publish_caches(self) -> None:
        """Has every publish looked at anew: something that entries depend on beside their routes has changed."""
        for cache in self._caches.values():
            cache.drop_all()

    def rights_changed(self, user_name: str) -> None:
        """Has every publish of a user looked at anew."""
        cache = self._caches.get(user_name)
        if cache is not None:
            cache.drop_all()

    # -- policies -----------------------------------------------------------------------------------------------------

    def apply_policies_to_queue(self, queue: Queue, *, settle: bool = True) -> bool:
        """Give a queue the rules of its arguments and of the policies that match it, and return whether they are new.

        With `settle` it is within them at once.
        """
        if queue.kept or queue.recovered:
            return False
        policy = self.policies.for_queue(queue)
        operator = self.policies.for_queue(queue, operator=True)
        queue.policy = None if policy is None else policy.name
        queue.operator_policy = None if operator is None else operator.name
        rules = queue_rules(
            queue.arguments,
            {} if policy is None else policy.definition,
            {} if operator is None else operator.definition,
        )
        changed = queue.apply_rules(rules)
        if changed and settle:
            queue.settle_in()
        return changed

    def apply_policies_to_exchange(self, exchange: Exchange) -> None:
        """Give an exchange the alternate of its arguments, or else of the policy that matches it."""
        alternate = exchange.arguments.get("alternate-exchange")
        if alternate is None:
            policy = self.policies.for_exchange(exchange)
            alternate = None if policy is None else policy.definition.get("alternate-exchange")
        if alternate != exchange.alternate:
            exchange.alternate = alternate
            self.router.exchange_changed(exchange.name)

    # -- the durable topology -----------------------------------------------------------------------------------------

    def topology(self) -> list[Change]:
        """Return the changes that make the durable exchanges, queues and bindings of this moment."""
        return snapshot(self)

    def topology_snapshot(self) -> TopologySnapshot:
        """Return the same to be told later. Cost: a glance at each of them."""
        return TopologySnapshot(self)

    def restore(self, changes: Iterable[Change]) -> None:
        """Make what the changes in the store come to, without journalling it."""
        restore(self, changes)

    def dismantle(self) -> Iterator[None]:
        """Let go of everything, because the vhost is deleted, and yield whenever others should have their turn."""
        self.sweep.end()
        deferred = self.bindings.deferred
        for exchange in list(self.exchanges.values()):
            deferred.take(exchange.end())
            while deferred.busy:
                yield
                deferred.turn()
        for place, queue in enumerate(list(self.queues.values()), 1):
            queue.delete()
            if place % QUEUES_AT_ONCE == 0:
                yield

    def restored(self) -> None:
        """Take up the work once the messages are back, too.

        Whether a message that lies on disk expires is known when it was read: each queue's head is, one queue after the
        other.
        """
        self.delays.restored()
        now_ms = self.ports.clock.now_ms
        waiting = [queue for queue in self.queues.values() if queue.ready and not queue.kept]
        for place, queue in enumerate(waiting):
            queue.timed = True
            self.ports.deadlines.set(queue, now_ms + place * HEAD_INTERVAL_MS, queue.look)
