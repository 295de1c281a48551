"""The bindings of a vhost: what leads from its exchanges to its queues and to other exchanges.

Codes and texts are those of RabbitMQ 4.3.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.errors import ChannelError
from broker.core.arguments import check_headers_match
from broker.core.names import refuse_default
from broker.core.queue.queue import Queue
from broker.core.resource import Resource
from broker.core.topology import changes
from broker.core.topology.deferred_unbinding import DeferredUnbinding
from broker.routing.exchange import Exchange
from broker.routing.pattern import PatternLimits

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["UNLIMITED", "Bindings"]

# Limits hold for who binds: a binding that is stored already comes back when they were lowered.
UNLIMITED: Final = PatternLimits(hashes=sys.maxsize, words=sys.maxsize)


class Bindings:
    """Binds and unbinds, and counts.

    Invariant: ``count`` is how many bindings there are, without those of what was deleted, which are in ``deferred``.
    """

    __slots__ = ("_pattern_limits", "_vhost", "count", "deferred")

    def __init__(self, vhost: Vhost, pattern_limits: PatternLimits | None) -> None:
        self._vhost = vhost
        self._pattern_limits = pattern_limits or PatternLimits()
        self.count = 0
        self.deferred = DeferredUnbinding(vhost.ports.clock, vhost.ports.deadlines)

    def bind_queue(
        self, queue_name: str, exchange_name: str, key: str, arguments: Mapping[str, Any], owner: object
    ) -> None:
        """Bind a queue to an exchange; a binding that exists already stays as it is.

        Raises: 403 for the default exchange, 404, 405, 406 for a binding key or an x-match that cannot be.
        """
        vhost = self._vhost
        if not exchange_name:
            refuse_default(vhost.exchange_resource(exchange_name))
        exchange = vhost.exchange(exchange_name)
        self._bind(exchange, vhost.queue(queue_name, owner), key, arguments)

    def bind_exchange(self, destination_name: str, source_name: str, key: str, arguments: Mapping[str, Any]) -> None:
        """Bind an exchange to another; a binding that exists already stays as it is.

        Raises: 403 for the default exchange, 404, 406 for a binding key or an x-match that cannot be.
        """
        vhost = self._vhost
        refuse_default(vhost.exchange_resource(destination_name))
        refuse_default(vhost.exchange_resource(source_name))
        source = vhost.exchange(source_name)
        self._bind(source, vhost.exchange(destination_name), key, arguments)

    def _bind(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        vhost = self._vhost
        if source.by_headers:
            check_headers_match(arguments)
        if self.count >= vhost.limits.bindings_max and not source.is_bound(destination, key, arguments):
            vhost.limits.check_bindings(_resource(vhost, destination), self.count)
        try:
            made = self.add(source, destination, key, arguments, self._pattern_limits)
        except ValueError as error:  # a binding key or arguments that the exchange cannot take
            raise ChannelError(406, str(error)) from error
        if made and source.durable and destination.durable:
            vhost.journal(changes.bound(destination, source, key, arguments))

    def add(
        self,
        source: Exchange,
        destination: Queue | Exchange,
        key: str,
        arguments: Mapping[str, Any],
        limits: PatternLimits | None = None,
    ) -> bool:
        """Make a binding and return whether it is a new one; does not tell the journal.

        Raises: ValueError, with nothing changed.
        """
        made = source.bind(destination, key, arguments, limits)
        self.count += made
        return made

    def unbind_queue(
        self, queue_name: str, exchange_name: str, key: str, arguments: Mapping[str, Any], owner: object
    ) -> None:
        """Remove a binding; a missing one, or one of a missing queue or exchange, is removed already.

        Raises: 403 for the default exchange, 405 for a binding of another connection's exclusive queue.
        Source: RabbitMQ, rabbit_binding:remove/3.
        """
        vhost = self._vhost
        refuse_default(vhost.exchange_resource(exchange_name))
        exchange, queue = vhost.exchanges.get(exchange_name), vhost.queues.get(queue_name)
        if exchange is not None and queue is not None and exchange.is_bound(queue, key, arguments):
            self._unbind(exchange, vhost.queue(queue_name, owner), key, arguments)

    def unbind_exchange(self, destination_name: str, source_name: str, key: str, arguments: Mapping[str, Any]) -> None:
        """Remove a binding between exchanges; a missing one, or one of a missing exchange, is removed already.

        Raises: 403 for the default exchange.
        """
        vhost = self._vhost
        refuse_default(vhost.exchange_resource(destination_name))
        refuse_default(vhost.exchange_resource(source_name))
        source, destination = vhost.exchanges.get(source_name), vhost.exchanges.get(destination_name)
        if source is not None and destination is not None:
            self._unbind(source, destination, key, arguments)

    def _unbind(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        made_with = source.unbind(destination, key, arguments)
        if made_with is None:
            return
        self.count -= 1
        if source.durable and destination.durable:
            self._vhost.journal(changes.unbound(destination, source, key, made_with))
        self._vhost.exchanges.drop_unbound((source,))

    def remove_of_queue(self, queue: Queue) -> None:
        """Remove the bindings of a queue that is being deleted: nothing leads to it any more."""
        self._vhost.exchanges.drop_unbound(self._remove_incoming(queue))

    def remove_of_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Remove the bindings on both sides of an exchange that is being deleted; returns what had led to it."""
        sources = self._remove_incoming(exchange)
        self.count -= exchange.binding_count
        self.deferred.take(exchange.end())
        return [source for source in sources if source is not exchange]

    def _remove_incoming(self, destination: Queue | Exchange) -> list[Exchange]:
        """End what leads to a queue or exchange that is being deleted, and return the exchanges that did.

        Cost: those exchanges; their indexes lose the keys turn by turn.
        """
        standing = [bundle for source, bundle in destination.incoming.items() if not source.deleted]
        for bundle in standing:
            self.count -= len(bundle)
            self.deferred.part(bundle)
        return [bundle.source for bundle in standing]


def _resource(vhost: Vhost, destination: Queue | Exchange) -> Resource:
    if isinstance(destination, Queue):
        return vhost.queue_resource(destination.name)
    return vhost.exchange_resource(destination.name)
