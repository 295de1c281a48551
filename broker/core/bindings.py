"""The bindings of a vhost: what leads from its exchanges to its queues and to other exchanges.

Codes and texts are those of RabbitMQ 3.10.8.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.errors import ChannelError
from broker.core import topology
from broker.core.arguments import check_headers_match
from broker.core.names import refuse_default
from broker.core.queue import Queue
from broker.core.resource import Resource
from broker.routing.binding import Binding, make_binding
from broker.routing.exchange import Exchange
from broker.routing.pattern import PatternLimits

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["UNLIMITED", "Bindings"]

# Limits hold for who binds: a binding that is stored already comes back when they were lowered.
UNLIMITED: Final = PatternLimits(hashes=sys.maxsize, words=sys.maxsize)


class Bindings:
    """Binds and unbinds, and counts.

    Invariant: a binding is in its exchange and in the `bindings` of its queue, or the `incoming` of its destination
        exchange, or in neither. ``count`` is how many there are.
    """

    __slots__ = ("_pattern_limits", "_vhost", "count")

    def __init__(self, vhost: Vhost, pattern_limits: PatternLimits | None) -> None:
        self._vhost = vhost
        self._pattern_limits = pattern_limits or PatternLimits()
        self.count = 0

    def bind_queue(
        self, queue_name: str, exchange_name: str, key: str, arguments: Mapping[str, Any], owner: object
    ) -> None:
        """Binds a queue to an exchange; a binding that exists already stays as it is.

        Raises: 403 for the default exchange, 404, 405, 406 for a binding key or an x-match that cannot be.
        """
        vhost = self._vhost
        refuse_default(vhost.exchange_resource(exchange_name))
        exchange = vhost.exchange(exchange_name)
        self._bind(exchange, vhost.queue(queue_name, owner), key, arguments)

    def bind_exchange(self, destination_name: str, source_name: str, key: str, arguments: Mapping[str, Any]) -> None:
        """Binds an exchange to another; a binding that exists already stays as it is.

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
        if make_binding(source.name, destination, key, arguments) in source.bindings:
            return
        vhost.limits.check_bindings(_resource(vhost, destination), self.count)
        try:
            source.check_key(key, self._pattern_limits)
            binding = self.add(source, destination, key, arguments)
        except ValueError as error:  # a binding key or arguments that the exchange cannot take
            raise ChannelError(406, str(error)) from error
        if binding is not None and topology.binding_is_durable(binding, source):
            vhost.journal(topology.bound(destination, source, key, arguments))

    def add(
        self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]
    ) -> Binding | None:
        """Returns the new binding, None when an equal one was there; does not tell the journal.

        Raises: ValueError, with nothing changed.
        """
        binding = source.bind(destination, key, arguments)
        if binding is not None:
            self.count += 1
            if isinstance(destination, Queue):
                destination.bindings[binding] = source
        return binding

    def unbind_queue(
        self, queue_name: str, exchange_name: str, key: str, arguments: Mapping[str, Any], owner: object
    ) -> None:
        """Removes a binding; a missing one, or one of a missing queue or exchange, is removed already.

        Raises: 403 for the default exchange, 405.
        Source: RabbitMQ 3.10, rabbit_binding:remove/3.
        """
        vhost = self._vhost
        refuse_default(vhost.exchange_resource(exchange_name))
        exchange = vhost.exchanges.get(exchange_name)
        if exchange is not None and queue_name in vhost.queues:
            self._unbind(exchange, vhost.queue(queue_name, owner), key, arguments)

    def unbind_exchange(self, destination_name: str, source_name: str, key: str, arguments: Mapping[str, Any]) -> None:
        """Removes a binding between exchanges; a missing one, or one of a missing exchange, is removed already.

        Raises: 403 for the default exchange.
        """
        vhost = self._vhost
        refuse_default(vhost.exchange_resource(destination_name))
        refuse_default(vhost.exchange_resource(source_name))
        source, destination = vhost.exchanges.get(source_name), vhost.exchanges.get(destination_name)
        if source is not None and destination is not None:
            self._unbind(source, destination, key, arguments)

    def _unbind(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        binding = source.unbind(destination, key, arguments)
        if binding is None:
            return
        self.count -= 1
        if isinstance(destination, Queue):
            del destination.bindings[binding]
        if topology.binding_is_durable(binding, source):
            arguments_as_bound = binding.arguments
            self._vhost.journal(topology.unbound(destination, source, key, arguments_as_bound))
        self._vhost.exchanges.drop_unbound((source,))

    def remove_of_queue(self, queue: Queue) -> None:
        """Removes the bindings of a queue that is being deleted. Cost: its own bindings."""
        bindings = list(queue.bindings.items())
        queue.bindings.clear()
        self.count -= len(bindings)
        for binding, source in bindings:
            source.remove(binding)
        self._vhost.exchanges.drop_unbound(dict.fromkeys(source for _, source in bindings))

    def remove_of_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Removes the bindings on both sides of an exchange that is being deleted; returns what had led to it.

        Cost: its own bindings.
        """
        incoming = list(exchange.incoming.items())
        for binding, source in incoming:
            source.remove(binding)
        outgoing = exchange.remove_all()
        for binding in outgoing:
            if isinstance(binding.destination, Queue):
                del binding.destination.bindings[binding]
        self.count -= len(incoming) + len(outgoing)
        return list(dict.fromkeys(source for _, source in incoming if source is not exchange))


def _resource(vhost: Vhost, destination: Queue | Exchange) -> Resource:
    if isinstance(destination, Queue):
        return vhost.queue_resource(destination.name)
    return vhost.exchange_resource(destination.name)
