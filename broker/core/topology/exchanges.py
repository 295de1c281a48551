"""The exchanges of a vhost, and the rules for declaring and deleting them. Codes and texts: RabbitMQ 4.3."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from broker.amqp.errors import ChannelError
from broker.core.arguments import named_exchange
from broker.core.names import (
    TRACE,
    check_exchange_type,
    is_predeclared,
    refuse_default,
    refuse_reserved,
    refuse_system_deletion,
)
from broker.core.queue.kinds import TapQueue
from broker.core.queue.queue import Queue
from broker.core.topology import changes
from broker.core.topology.equivalence import check_same_exchange
from broker.core.topology.parts import TopologyParts
from broker.routing.cache import CacheLimits
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import PREDECLARED, make_exchange
from broker.routing.fanout_exchange import MemoryExchange
from broker.routing.index import AUTO
from broker.routing.pattern import BindingKeyError, PatternLimits
from broker.routing.router import Router

# Stored bindings are restored even if they exceed limits that were lowered since.
UNLIMITED: Final = PatternLimits(hashes=sys.maxsize, words=sys.maxsize)


class Exchanges(dict[str, Exchange]):
    """The exchanges of a vhost by name, including the predeclared ones, and the router over them. `taps` maps names to
    the queues of taps.

    Invariant: the journal decides each change by a client before it is made.
    """

    def __init__(
        self,
        parts: TopologyParts,
        on_declared: Callable[[Exchange], None],
        on_deleted: Callable[[Exchange], None],
        *,
        cache_limits: CacheLimits | None = None,
        topic_index: str = AUTO,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._on_declared, self._on_deleted = on_declared, on_deleted
        self._cache_limits = cache_limits
        self._topic_index = topic_index
        self.router = Router(self.get, cache_limits=cache_limits)
        self.taps: dict[str, TapQueue] = {}
        self._own = 0  # exchanges that no client created, except for the default one
        self.default: DefaultExchange

    def predeclare(self, reachable: Callable[[str], Queue | None]) -> None:
        """Create the predeclared exchanges; `reachable` finds the queue to which the default exchange routes a name."""
        self.default = self[""] = DefaultExchange(reachable, cache_limits=self._cache_limits)
        for name, type_ in PREDECLARED.items():
            self.add(name, type_, durable=True, internal=name == TRACE)
            self._own += 1

    def add_own(self, name: str, type: str) -> Exchange:
        """Create a transient exchange to which only the broker publishes."""
        self._own += 1
        return self.add(name, type, internal=True)

    def end(self) -> None:
        """Break the reference cycles with the exchanges and the vhost, because the vhost has ended."""
        self.clear()
        self.default = DefaultExchange(lambda _name: None)
        self.router.end()
        self._on_declared = self._on_deleted = lambda _exchange: None

    def find(self, name: str) -> Exchange:
        """Return an exchange. Raises: 404."""
        exchange = self.get(name)
        if exchange is None:
            raise ChannelError(404, f"no {self._parts.exchange(name)}")
        if self._parts.sweep.pending:
            self._parts.sweep.update_exchange(exchange)
        return exchange

    def declare(
        self,
        name: str,
        type: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Exchange:
        """Return the exchange with a name, creating it unless an equivalent one exists. Raises: 403 for the default
        exchange or a reserved name; 406 if it differs from the existing one, for a type or an argument that is not
        supported, and at the limit; Postponed.
        """
        arguments = arguments or {}
        resource = self._parts.exchange(name)
        check_exchange_type(type)
        refuse_default(resource)
        exchange = self.get(name)
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
        named_exchange(resource, arguments, "alternate-exchange")
        self._parts.limits.check_exchanges(resource, self.declared_count)
        try:
            exchange = self._make(
                name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
            )
        except ValueError as error:
            raise ChannelError(406, str(error)) from error
        if isinstance(exchange, MemoryExchange):
            self._parts.limits.check_alone(resource, f"exchange type '{type}'")
        self._parts.journal.decide(changes.exchange_declared(exchange), durable=durable)
        self._enter(exchange)
        self._on_declared(exchange)
        return exchange

    def add(self, name: str, type: str, **properties: Any) -> Exchange:
        """Create an exchange without journaling it."""
        return self._enter(self._make(name, type, **properties))

    def _make(self, name: str, type: str, **properties: Any) -> Exchange:
        return make_exchange(
            name,
            type,
            pattern_limits=UNLIMITED,
            cache_limits=self._cache_limits,
            topic_index=self._topic_index,
            **properties,
        )

    def _enter(self, exchange: Exchange) -> Exchange:
        name = exchange.name
        self[name] = exchange
        for queue in self.taps.values():
            if queue.exchange == name:
                self._listen(queue)
        self._parts.policies.apply_to_exchange(exchange)
        self.router.exchange_changed(name)
        for watch in self._parts.live.watches:
            watch.declared(exchange)
        return exchange

    def tap(self, queue: TapQueue) -> None:
        """Connect the queue of a tap to its exchange if the exchange exists, and whenever it is declared again."""
        self.taps[queue.name] = queue
        self._listen(queue)

    def untap(self, queue: TapQueue) -> None:
        """Disconnect the queue of a tap from its exchange. A new exchange is connected if the queue is in `taps`."""
        exchange = self.get(queue.exchange)
        if exchange is not None:
            exchange.forget_listener(queue)

    def _listen(self, queue: TapQueue) -> None:
        """Connect the queue of a tap to its exchange, unless the pattern is invalid in the exchange's dialect."""
        exchange = self.get(queue.exchange)
        if exchange is not None:
            with suppress(BindingKeyError):
                exchange.listen(queue, queue.pattern, UNLIMITED)

    def delete(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings; do nothing if it does not exist. Raises: 403 for a predeclared one; 406
        if `if_unused` is set and the exchange is the source of a binding; Postponed.
        """
        resource = self._parts.exchange(name)
        refuse_default(resource)
        refuse_system_deletion(resource)
        exchange = self.get(name)
        if exchange is None:
            return
        if if_unused and exchange.binding_count:
            raise ChannelError(406, f"{resource} in use")
        self.drop_unbound(self._drop(exchange))

    def drop_unbound(self, exchanges: Iterable[Exchange]) -> None:
        """Delete each of the exchanges that is auto-delete and no longer the source of a binding. A deletion removes
        the bindings to the exchange, so the sources of these bindings are checked too.
        Source: RabbitMQ, rabbit_exchange:maybe_auto_delete.
        """
        pending = list(exchanges)
        for exchange in pending:  # grows during the loop
            if exchange.auto_delete and not exchange.binding_count and self.get(exchange.name) is exchange:
                pending.extend(self._drop(exchange))

    def _drop(self, exchange: Exchange) -> list[Exchange]:
        """Delete an exchange, and return the exchanges to which it was bound."""
        self._parts.journal.decide(changes.exchange_deleted(exchange), durable=exchange.durable)
        del self[exchange.name]
        sources = self._parts.live.end_of_exchange(exchange)
        for watch in self._parts.live.watches:
            watch.deleted(exchange)
        self._on_deleted(exchange)
        self.router.exchange_changed(exchange.name)
        return sources

    @property
    def declared_count(self) -> int:
        """The number of exchanges that clients have declared, to which the limit of the vhost applies."""
        return len(self) - 1 - self._own

    def declared(self) -> list[Exchange]:
        """Return the exchanges, without the predeclared ones."""
        return [exchange for name, exchange in self.items() if not is_predeclared(name)]
