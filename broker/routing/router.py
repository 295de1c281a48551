"""The router of a vhost: it follows bindings from an exchange through other exchanges to queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.routing.cache import CacheLimits, CompositeCache
from broker.routing.exchange import Exchange, MessageFields
from broker.routing.route import Route


class Router:
    """Find the queues of a message by following bindings between exchanges, and alternate exchanges.

    Each exchange is visited once, with the routing key of the message, and each queue is returned once. An exchange
    that does not route the message (`is_routed`) passes it to its alternate; a missing alternate, or the default
    exchange as the alternate, routes nothing. A message that an exchange with an outlet routes on to another exchange
    does not enter the outlet of the latter, because the other brokers route the message on themselves.

    Invariant: a route is live only while `route` would return the same destinations.
    Source: RabbitMQ, rabbit_exchange:route/2.
    """

    def __init__(self, lookup: Callable[[str], Exchange | None], *, cache_limits: CacheLimits | None = None) -> None:
        """Shapes: `lookup` returns the exchange of a name, or None if it does not exist."""
        self._lookup = lookup
        self._composites = CompositeCache(cache_limits)
        self._standing: dict[str, Route] = {}
        self._absent = Route((), live=True)  # a part of each route that lacked an alternate exchange

    def end(self) -> None:
        """Find no more exchanges by name, because the vhost is deleted."""
        self._lookup = lambda _name: None

    def forget_misses(self) -> None:
        """Discard the misses that the cache of routes through exchanges has recorded."""
        self._composites.forget_misses()

    def route(self, exchange: Exchange, key: str) -> Route:
        """Return the route of a message by its routing key; the destinations are queues.

        The route of a dynamic exchange has no destinations, and is live while a message may reach the same set of
        exchanges.
        Cost: that of `Exchange.route`, unless the exchange has an alternate or routes to other exchanges.
        """
        if exchange.alternate is None and not exchange.onward:
            return exchange.route(key)
        if self.dynamic(exchange):
            return self._standing_route(exchange)
        route = exchange.route(key)
        if not exchange.is_routed(route.destinations):
            if exchange.alternate is None:
                return route
        elif not exchange.onward or not any(isinstance(known, Exchange) for known in route.destinations):
            return route
        composite = self._composites.entries.get((exchange.name, key))
        if composite is not None and composite.live:
            return composite
        return self._compose(exchange, key)

    def queues(self, exchange: Exchange, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the queues of one message that may have several routing keys, or none."""
        if len(keys) == 1 and not self.dynamic(exchange):
            return self.route(exchange, keys[0]).destinations
        return self.match(exchange, keys[0], fields, keys[1:]) if keys else ()

    def dynamic(self, exchange: Exchange) -> bool:
        """Return whether a message from this exchange can reach an exchange that routes by more than the key."""
        if exchange.alternate is None and not exchange.onward:
            return exchange.by_headers
        return any(reached.by_headers for reached in self.reachable(exchange))

    def match(
        self, exchange: Exchange, key: str, fields: MessageFields, more_keys: Sequence[str] = ()
    ) -> tuple[Any, ...]:
        """Return the queues of one message by its routing keys and its fields.

        Shapes: `more_keys` are the keys of CC and BCC; an alternate exchange gets a message if none of the keys match.
        """
        keys = (key, *more_keys)
        return self._walk(exchange, lambda reached: reached.match(keys, fields))[0]

    def follow(
        self, exchange: Exchange, destinations: tuple[Any, ...], keys: Sequence[str], fields: MessageFields
    ) -> tuple[Any, ...]:
        """Return the queues of one message, given the destinations to which the first exchange forwards it."""
        return self._walk(
            exchange, lambda reached: destinations if reached is exchange else reached.match(keys, fields)
        )[0]

    def exchange_changed(self, name: str) -> None:
        """End the routes that may depend on an exchange, after it was declared or deleted or its alternate was set.

        Not needed after a bind or unbind, which ends routes itself.
        """
        standing = self._standing.pop(name, None)
        if standing is not None:
            standing.end()
        self._absent.end()
        self._absent = Route((), live=True)

    def _compose(self, exchange: Exchange, key: str) -> Route:
        parts: list[Route] = []

        def follow(reached: Exchange) -> tuple[Any, ...]:
            route = reached.route(key)
            parts.append(route)
            return route.destinations

        queues, complete = self._walk(exchange, follow)
        if not complete:
            parts.append(self._absent)
        return self._composites.offer((exchange.name, key), queues, parts)

    def _walk(self, exchange: Exchange, follow: Callable[[Exchange], tuple[Any, ...]]) -> tuple[tuple[Any, ...], bool]:
        """Return the reached queues, each once, and whether every alternate exchange that was needed exists."""
        queues: dict[Any, None] = {}
        reached = {exchange: None}
        pending = [exchange]
        beyond: set[Exchange] = set()  # reached by bindings from an exchange with an outlet
        complete = True
        for current in pending:  # grows during the loop
            destinations = follow(current)
            outlet, is_beyond = current.listeners.outlet, current in beyond
            alternate = None
            if current.alternate is not None and not current.is_routed(destinations):
                alternate = self._alternate(current)
                if alternate is not None:
                    destinations = (*destinations, alternate)
                complete = complete and alternate is not None
            for destination in destinations:
                if not isinstance(destination, Exchange):
                    if destination is not outlet or not is_beyond:
                        queues[destination] = None
                elif destination not in reached:
                    reached[destination] = None
                    pending.append(destination)
                    if is_beyond or (outlet is not None and destination is not alternate):
                        beyond.add(destination)
        return tuple(queues), complete

    def reachable(self, exchange: Exchange) -> dict[Exchange, None]:
        """Return the exchanges that a message may reach, whatever its key."""
        reached = {exchange: None}
        pending = [exchange]
        for current in pending:  # grows during the loop
            alternate = self._alternate(current)
            for destination in current.onward if alternate is None else (*current.onward, alternate):
                if destination not in reached:
                    reached[destination] = None
                    pending.append(destination)
        return reached

    def _standing_route(self, exchange: Exchange) -> Route:
        known = self._standing.get(exchange.name)
        if known is None or not known.live:
            reachable = self.reachable(exchange)
            parts = [reached.standing for reached in reachable]
            if any(reached.alternate is not None and self._alternate(reached) is None for reached in reachable):
                parts.append(self._absent)
            known = self._standing[exchange.name] = Route((), live=True, parts=parts)
        return known

    def _alternate(self, exchange: Exchange) -> Exchange | None:
        name = exchange.alternate
        return self._lookup(name) if name else None
