"""The exchanges of a vhost, and every rule about declaring and deleting them.

Codes and texts are those of RabbitMQ 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from broker.amqp.errors import ChannelError
from broker.core.arguments import named_exchange
from broker.core.names import (
    PREDECLARED,
    TRACE,
    check_exchange_type,
    is_predeclared,
    refuse_default,
    refuse_reserved,
    refuse_system_deletion,
)
from broker.core.topology import changes
from broker.core.topology.bindings import UNLIMITED
from broker.core.topology.equivalence import check_same_exchange
from broker.routing.cache import CacheLimits
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.pattern import BindingKeyError

if TYPE_CHECKING:
    from broker.core.queue.tap_queue import TapQueue
    from broker.core.vhost import Vhost

__all__ = ["Exchanges"]


class Exchanges(dict[str, Exchange]):
    """Holds the exchanges by name, those that are always there among them.

    Invariant: the journal hears of each change of a durable exchange once, in order, before the answer.
    """

    __slots__ = ("_cache_limits", "_topic_index", "_vhost", "default")

    def __init__(self, vhost: Vhost, cache_limits: CacheLimits | None, topic_index: str) -> None:
        super().__init__()
        self._vhost = vhost
        self._cache_limits = cache_limits
        self._topic_index = topic_index
        self.default = DefaultExchange(vhost.queues.reachable, cache_limits=cache_limits)
        self[""] = self.default

    def predeclare(self) -> None:
        """Make the exchanges that every vhost has."""
        for name, type_ in PREDECLARED:
            self.add(name, type_, durable=True, internal=name == TRACE)

    def find(self, name: str) -> Exchange:
        """Return an exchange. Raises: 404."""
        exchange = self.get(name)
        if exchange is None:
            raise ChannelError(404, f"no {self._vhost.exchange_resource(name)}")
        if self._vhost.sweep.pending:
            self._vhost.sweep.update_exchange(exchange)
        return exchange

    def declare(
        self,
        name: str,
        type: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
    ) -> Exchange:
        """Return the exchange of that name, made now or found equivalent.

        Raises: 403 for a reserved name; 406 when it differs from the one that exists, for arguments that its type
            cannot have, for an unknown type, and at the limit.
        """
        vhost = self._vhost
        resource = vhost.exchange_resource(name)
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
        vhost.limits.check_exchanges(resource, len(self) - 1 - len(PREDECLARED))
        try:
            exchange = self.add(
                name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
            )
        except ValueError as error:
            raise ChannelError(406, str(error)) from error
        if durable:
            vhost.journal(changes.exchange_declared(exchange))
        if exchange.delayed:
            vhost.delays.open(exchange)
        return exchange

    def add(self, name: str, type: str, **properties: Any) -> Exchange:
        """Return a new exchange, without telling the journal."""
        exchange = make_exchange(
            name,
            type,
            pattern_limits=UNLIMITED,
            cache_limits=self._cache_limits,
            topic_index=self._topic_index,
            **properties,
        )
        self[name] = exchange
        for queue in self._vhost.queues.taps.values():
            if queue.exchange == name:
                self.tap(queue)
        self._vhost.apply_policies_to_exchange(exchange)
        self._vhost.router.exchange_changed(name)
        return exchange

    def tap(self, queue: TapQueue) -> None:
        """Let the queue of a tap hear its exchange, if there is one that can read its pattern.

        One that was declared again may be of another dialect.
        """
        exchange = self.get(queue.exchange)
        if exchange is not None:
            with suppress(BindingKeyError):
                exchange.listen(queue, queue.pattern, UNLIMITED)

    def untap(self, queue: TapQueue) -> None:
        """Let the queue of a tap hear nothing any more."""
        exchange = self.get(queue.exchange)
        if exchange is not None:
            exchange.forget_listener(queue)

    def delete(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings; one that does not exist is deleted already.

        Raises: 403 for a predeclared one, 406 when something is bound to it and must not be.
        """
        resource = self._vhost.exchange_resource(name)
        refuse_default(resource)
        refuse_system_deletion(resource)
        exchange = self.get(name)
        if exchange is None:
            return
        if if_unused and exchange.binding_count:
            raise ChannelError(406, f"{resource} in use")
        self.drop_unbound(self._drop(exchange))

    def drop_unbound(self, exchanges: Iterable[Exchange]) -> None:
        """Delete the auto-delete exchanges among those that have just lost a binding and have none left.

        That takes away bindings of the exchanges which led to them, so it goes on with those.
        Source: RabbitMQ, rabbit_exchange:maybe_auto_delete: bindings count where the exchange is their source.
        """
        pending = list(exchanges)
        for exchange in pending:  # grows on the way
            if exchange.auto_delete and not exchange.binding_count and self.get(exchange.name) is exchange:
                pending.extend(self._drop(exchange))

    def _drop(self, exchange: Exchange) -> list[Exchange]:
        """Delete an exchange and return those that led to it."""
        vhost = self._vhost
        del self[exchange.name]
        sources = vhost.bindings.remove_of_exchange(exchange)
        if exchange.durable:
            vhost.journal(changes.exchange_deleted(exchange))
        if exchange.delayed:
            vhost.delays.close(exchange)
        vhost.router.exchange_changed(exchange.name)
        return sources

    def declared(self) -> list[Exchange]:
        """Return the exchanges that somebody declared."""
        return [exchange for name, exchange in self.items() if not is_predeclared(name)]
