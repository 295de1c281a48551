"""A vhost: its exchanges, queues and bindings, and every rule about declaring and deleting them.

Knows nothing of connections, frames or permissions; the sessions ask it. Codes and texts are those of RabbitMQ 3.10.8.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.amqp.errors import ChannelError
from broker.core import topology
from broker.core.arguments import (
    EXCHANGE_NOT_YET,
    QUEUE_NOT_YET,
    check_headers_match,
    check_queue_arguments,
    refuse_not_yet,
)
from broker.core.auth.users import User
from broker.core.equivalence import check_same_exchange, check_same_queue
from broker.core.names import (
    PREDECLARED,
    check_exchange_type,
    refuse_default,
    refuse_reserved,
    refuse_system_deletion,
)
from broker.core.queue import Queue, QueuePorts
from broker.core.resource import Resource
from broker.core.topology import Change
from broker.routing.cache import CacheLimits, PublishCache
from broker.routing.exchange import DefaultExchange, Exchange, make_exchange
from broker.routing.pattern import PatternLimits, parse_pattern

if TYPE_CHECKING:
    from broker.core.session.publisher import PublishEntry, Publisher

__all__ = ["Committer", "Vhost"]

Arguments = dict[str, Any] | None
# Limits hold for who binds: a binding that is stored already comes back when they were lowered.
UNLIMITED: Final = PatternLimits(hashes=sys.maxsize, words=sys.maxsize)


class Committer(Protocol):
    """What confirms publishes once they are on disk."""

    def wait(self, publisher: Publisher) -> None:
        """Has a publisher confirmed after the next commit."""


class Vhost:
    """Holds the exchanges and queues of one vhost.

    Invariant: a binding is in its exchange and in the `bindings` of its queue, or in neither.
    Invariant: `journal` hears of each change of a durable exchange, queue or binding once, in order, before the answer.
    """

    __slots__ = (
        "_cache_limits",
        "_caches",
        "_default",
        "_generate",
        "_journal",
        "_owned",
        "_pattern_limits",
        "committer",
        "exchanges",
        "name",
        "next_queue_number",
        "ports",
        "queues",
    )

    def __init__(
        self,
        name: str,
        *,
        ports: QueuePorts,
        committer: Committer,
        journal: Callable[[Change], None],
        generate: Callable[[], str],
        pattern_limits: PatternLimits | None = None,
        cache_limits: CacheLimits | None = None,
    ) -> None:
        """Shapes: `generate` returns 22 fresh random characters, for a name that the client left out."""
        self.name = name
        self.ports = ports
        self.committer = committer
        self.queues: dict[str, Queue] = {}
        self._cache_limits = cache_limits
        self._default = DefaultExchange(self.queues.get, cache_limits=cache_limits)
        self.exchanges: dict[str, Exchange] = {"": self._default}
        for exchange_name, type_ in PREDECLARED:
            self.add_exchange(exchange_name, type_, durable=True)
        self.next_queue_number = 1
        self._journal = journal
        self._generate = generate
        self._pattern_limits = pattern_limits or PatternLimits()
        self._owned: dict[object, dict[str, Queue]] = {}
        self._caches: dict[str, PublishCache[PublishEntry]] = {}

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Returns an exchange.

        Raises: 404.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise ChannelError(404, f"no {self.exchange_resource(name)}")
        return exchange

    def queue(self, name: str, owner: object) -> Queue:
        """Returns a queue that this connection may use.

        Raises: 404; 405 when it is exclusive to another connection.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise ChannelError(404, f"no {self.queue_resource(name)}")
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise _locked(self.queue_resource(name))
        return queue

    def exchange_resource(self, name: str) -> Resource:
        """Returns the name of an exchange of this vhost."""
        return Resource("exchange", self.name, name)

    def queue_resource(self, name: str) -> Resource:
        """Returns the name of a queue of this vhost."""
        return Resource("queue", self.name, name)

    def owned_by(self, owner: object) -> Iterable[Queue]:
        """Returns the exclusive queues of a connection."""
        return tuple(self._owned.get(owner, {}).values())

    def new_name(self, prefix: str) -> str:
        """Returns a fresh name for a queue or a consumer that the client left nameless."""
        return prefix + self._generate()

    def publish_cache(self, user: User) -> PublishCache[PublishEntry]:
        """Returns the cache of what this user's publishes come to; its rights are part of the entries."""
        cache = self._caches.get(user.name)
        if cache is None:
            cache = self._caches[user.name] = PublishCache(self._cache_limits)
        return cache

    # -- exchanges ----------------------------------------------------------------------------------------------------

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
        """Returns the exchange of that name, made now or found equivalent.

        Raises: 403 for a reserved name, 406 when it differs from the one that exists, 503 for an unknown type, 540.
        """
        arguments = arguments or {}
        resource = self.exchange_resource(name)
        check_exchange_type(type)
        refuse_default(resource)
        refuse_not_yet(resource, arguments, EXCHANGE_NOT_YET)
        exchange = self.exchanges.get(name)
        if exchange is not None:
            check_same_exchange(
                resource,
                exchange,
                type,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
            )
            return exchange
        refuse_reserved("exchange", name)
        exchange = self.add_exchange(
            name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        if durable:
            self._journal(topology.exchange_declared(exchange))
        return exchange

    def add_exchange(self, name: str, type: str, **properties: Any) -> Exchange:
        """Returns a new exchange, without telling the journal."""
        exchange = make_exchange(name, type, pattern_limits=UNLIMITED, cache_limits=self._cache_limits, **properties)
        self.exchanges[name] = exchange
        return exchange

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Deletes an exchange and its bindings; one that does not exist is deleted already.

        Raises: 403 for a predeclared one, 406 when it is in use and must not be.
        """
        resource = self.exchange_resource(name)
        refuse_default(resource)
        refuse_system_deletion(resource)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and len(exchange.bindings):
            raise ChannelError(406, f"{resource} in use")
        self._drop_exchange(exchange)

    def _drop_exchange(self, exchange: Exchange) -> None:
        del self.exchanges[exchange.name]
        for binding in exchange.remove_all():
            del binding.destination.bindings[binding]
        if exchange.durable:
            self._journal(topology.exchange_deleted(exchange))

    # -- queues -------------------------------------------------------------------------------------------------------

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
        """Returns the queue of that name, made now or found equivalent.

        An exclusive queue is not durable whatever was asked for, as it cannot outlive its connection.
        Raises: 403 for a reserved name, 405 when it is another connection's, 406 when it differs, 540.
        """
        arguments = arguments or {}
        durable = durable and not exclusive
        resource = self.queue_resource(name)
        refuse_not_yet(resource, arguments, QUEUE_NOT_YET)
        queue = self.queues.get(name)
        if queue is not None:
            if queue.exclusive_owner is not (owner if exclusive else None):
                raise _locked(resource)
            check_same_queue(resource, queue, durable=durable, auto_delete=auto_delete, arguments=arguments)
            return queue
        check_queue_arguments(resource, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        queue = self.add_queue(
            name,
            number=self.next_queue_number,
            durable=durable,
            exclusive_owner=owner if exclusive else None,
            auto_delete=auto_delete,
            arguments=arguments,
        )
        if durable:
            self._journal(topology.queue_declared(queue))
        return queue

    def add_queue(
        self,
        name: str,
        *,
        number: int,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: dict[str, Any],
    ) -> Queue:
        """Returns a new queue under a number that no other ever had, without telling the journal."""
        queue = Queue(
            name,
            durable=durable,
            exclusive_owner=exclusive_owner,
            auto_delete=auto_delete,
            arguments=arguments,
            number=number,
            ports=self.ports,
        )
        self.next_queue_number = max(self.next_queue_number, number + 1)
        self.queues[name] = queue
        if exclusive_owner is not None:
            self._owned.setdefault(exclusive_owner, {})[name] = queue
        self._default.touch(name)
        return queue

    def delete_queue(self, name: str, owner: object, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Deletes a queue and returns how many messages were ready; one that does not exist had none.

        Raises: 405, and 406 when it is in use or not empty and must not be.
        """
        if name not in self.queues:
            return 0
        queue = self.queue(name, owner)
        if if_empty and queue.ready:
            raise ChannelError(406, f"{self.queue_resource(name)} not empty")
        if if_unused and queue.consumers:
            raise ChannelError(406, f"{self.queue_resource(name)} in use")
        return self._drop_queue(queue)

    def consumer_left(self, queue: Queue) -> bool:
        """Deletes an auto-delete queue whose last consumer has left, and tells whether it did."""
        unused = queue.auto_delete and queue.had_consumers and not queue.consumers
        if not unused or self.queues.get(queue.name) is not queue:
            return False
        self._drop_queue(queue)
        return True

    def owner_gone(self, owner: object) -> None:
        """Deletes the exclusive queues of a connection that ended."""
        for queue in self.owned_by(owner):
            self._drop_queue(queue)
        self._owned.pop(owner, None)

    def _drop_queue(self, queue: Queue) -> int:
        # Out of the tables first: what the deletion wakes (cancelled consumers) must not find the queue again.
        del self.queues[queue.name]
        self._default.touch(queue.name)
        owned = self._owned.get(queue.exclusive_owner, {})
        owned.pop(queue.name, None)
        bindings = list(queue.bindings.items())
        queue.bindings.clear()
        if queue.durable:
            self._journal(topology.queue_deleted(queue))
        for binding, exchange in bindings:
            exchange.remove(binding)
            self._binding_gone(exchange)
        return queue.delete()

    # -- bindings -----------------------------------------------------------------------------------------------------

    def bind(
        self, queue_name: str, exchange_name: str, key: str, arguments: Arguments = None, owner: object = None
    ) -> None:
        """Binds a queue to an exchange; a binding that exists already stays as it is.

        Raises: 403 for the default exchange, 404, 405, 406 for a binding key or an x-match that cannot be.
        """
        arguments = arguments or {}
        refuse_default(self.exchange_resource(exchange_name))
        exchange = self.exchange(exchange_name)
        queue = self.queue(queue_name, owner)
        if exchange.by_headers:
            check_headers_match(arguments)
        try:
            if exchange.type == "topic":
                parse_pattern(key, self._pattern_limits)
            binding = exchange.bind(queue, key, arguments)
        except ValueError as error:  # a binding key or arguments that the exchange cannot take
            raise ChannelError(406, str(error)) from error
        if binding is None:
            return
        queue.bindings[binding] = exchange
        if topology.binding_is_durable(binding, exchange):
            self._journal(topology.bound(queue, exchange, key, arguments))

    def unbind(
        self, queue_name: str, exchange_name: str, key: str, arguments: Arguments = None, owner: object = None
    ) -> None:
        """Removes a binding; a missing one, or one of a missing queue or exchange, is removed already.

        Raises: 403 for the default exchange, 405.
        Source: RabbitMQ 3.10, rabbit_binding:remove/3.
        """
        arguments = arguments or {}
        refuse_default(self.exchange_resource(exchange_name))
        exchange = self.exchanges.get(exchange_name)
        if exchange is None or queue_name not in self.queues:
            return
        queue = self.queue(queue_name, owner)
        binding = exchange.unbind(queue, key, arguments)
        if binding is None:
            return
        del queue.bindings[binding]
        if topology.binding_is_durable(binding, exchange):
            self._journal(topology.unbound(queue, exchange, key, binding.arguments))  # as they were bound
        self._binding_gone(exchange)

    def _binding_gone(self, exchange: Exchange) -> None:
        if exchange.auto_delete and not len(exchange.bindings) and self.exchanges.get(exchange.name) is exchange:
            self._drop_exchange(exchange)

    # -- the durable topology -----------------------------------------------------------------------------------------

    def topology(self) -> list[Change]:
        """Returns the changes that make the durable exchanges, queues and bindings of this moment."""
        return topology.snapshot(self)

    def restore(self, changes: Iterable[Change]) -> None:
        """Makes what the changes in the store come to, without journalling it."""
        topology.restore(self, changes)


def _locked(resource: Resource) -> ChannelError:
    return ChannelError(
        405,
        f"cannot obtain exclusive access to locked {resource}. It could be originally declared on another connection "
        "or the exclusive property value does not match that of the original declaration.",
    )
