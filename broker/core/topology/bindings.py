"""Bind and unbind queues and exchanges by name. Codes and texts are those of RabbitMQ 4.3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.amqp.errors import ChannelError
from broker.core.arguments import check_headers_match
from broker.core.names import refuse_default
from broker.core.postponed import Postponed
from broker.core.queue.queue import Queue
from broker.core.topology import changes
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.parts import TopologyParts
from broker.core.topology.queues import Queues
from broker.routing.exchange import Exchange
from broker.routing.pattern import PatternLimits

Arguments = Mapping[str, Any] | None


class Bindings:
    """Bind queues and exchanges of a vhost to its exchanges; `live` contains the bindings.

    Invariant: the journal decides each change of a binding before its method is answered.
    """

    def __init__(
        self,
        parts: TopologyParts,
        exchanges: Exchanges,
        queues: Queues,
        pattern_limits: PatternLimits | None,
        before: Callable[[Exchange], None],
        after: Callable[[Exchange, Queue | Exchange], None],
    ) -> None:
        """`before` is called with the source of a bind and may raise Postponed, `after` with both ends of a binding."""
        self._parts = parts
        self._exchanges = exchanges
        self._queues = queues
        self.live = parts.live
        self._pattern_limits = pattern_limits or PatternLimits()
        self._before = before
        self._after = after

    def bind(self, queue: str, exchange: str, key: str, arguments: Arguments = None, owner: object = None) -> None:
        """Bind a queue to an exchange; do nothing if the binding exists.

        Raises: 403 for the default exchange or an internal queue; 404; 405; 406 for an invalid binding key or argument,
            and at the limit; Postponed.
        """
        refuse_default(self._parts.exchange(exchange))
        source = self._exchanges.find(exchange)
        self._bind(source, self._queues.find(queue, owner), key, arguments or {})

    def bind_exchange(self, destination: str, source: str, key: str, arguments: Arguments = None) -> None:
        """Bind an exchange to another; do nothing if the binding exists.

        Raises: 403 for the default exchange; 404; 406 for an invalid binding key or argument, and at the limit;
            Postponed.
        """
        refuse_default(self._parts.exchange(destination))
        refuse_default(self._parts.exchange(source))
        found = self._exchanges.find(source)
        self._bind(found, self._exchanges.find(destination), key, arguments or {})

    def _bind(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        if source.by_headers:
            check_headers_match(arguments)
        count = self.live.count
        if count >= self._parts.limits.bindings_max and not source.is_bound(destination, key, arguments):
            named = self._parts.queue if isinstance(destination, Queue) else self._parts.exchange
            self._parts.limits.check_bindings(named(destination.name), count)
        self._before(source)
        try:
            is_new = self.live.add(source, destination, key, arguments, self._pattern_limits)
        except ValueError as error:  # a binding key or arguments that the exchange does not accept
            raise ChannelError(406, str(error)) from error
        if is_new:
            try:
                self._decide(changes.bound(destination, source, key, arguments), source, destination)
            except Postponed:  # the binding was added to check the key and the arguments
                self.live.remove(source, destination, key, arguments)
                raise
            self._after(source, destination)

    def unbind(self, queue: str, exchange: str, key: str, arguments: Arguments = None, owner: object = None) -> None:
        """Remove a binding of a queue; do nothing if the binding, the queue or the exchange does not exist.

        Raises: 403 for the default exchange or an internal queue; 405 for another connection's queue; Postponed.
        Source: RabbitMQ, rabbit_binding:remove/3.
        """
        refuse_default(self._parts.exchange(exchange))
        source, destination = self._exchanges.get(exchange), self._queues.get(queue)
        if source is not None and destination is not None and source.is_bound(destination, key, arguments or {}):
            self._unbind(source, self._queues.find(queue, owner), key, arguments or {})

    def unbind_exchange(self, destination: str, source: str, key: str, arguments: Arguments = None) -> None:
        """Remove a binding between exchanges; do nothing if the binding or an exchange does not exist.

        Raises: 403 for the default exchange; Postponed.
        """
        refuse_default(self._parts.exchange(destination))
        refuse_default(self._parts.exchange(source))
        found, bound = self._exchanges.get(source), self._exchanges.get(destination)
        if found is not None and bound is not None:
            self._unbind(found, bound, key, arguments or {})

    def _unbind(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        made_with = source.bound_with(destination, key, arguments)
        if made_with is None:
            return
        self._decide(changes.unbound(destination, source, key, made_with), source, destination)
        self.live.remove(source, destination, key, arguments)
        self._exchanges.drop_unbound((source,))

    def _decide(self, change: changes.Change, source: Exchange, destination: Queue | Exchange) -> None:
        owner = destination.exclusive_owner if isinstance(destination, Queue) else None
        self._parts.journal.decide(change, durable=source.durable and destination.durable, owner=owner)
