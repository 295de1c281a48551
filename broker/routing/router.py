"""The router of a vhost: from an exchange, through others, to queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.routing.cache import CacheLimits, CompositeCache
from broker.routing.exchange import Exchange
from broker.routing.message_fields import MessageFields
from broker.routing.route import Route


class Router:
    """Follows bindings between exchanges and alternate exchanges until only queues are left.

    Each exchange is visited once, with the routing key that the message came with, and each queue comes once. The
    alternate of an exchange is visited when no binding of that exchange matches, be it the first or an inner one;
    one that does not exist, or the default exchange, leads nowhere. Who only listens to an exchange is no match.

    Invariant: a route is live only as long as it is what `route` would return: what it was made of ends it, and so
        does `exchange_changed` where an alternate exchange was missing.
    Source: RabbitMQ, rabbit_exchange:route/2.
    """

    __slots__ = ("_absent", "_composites", "_lookup", "_standing")

    def __init__(self, lookup: Callable[[str], Exchange | None], *, cache_limits: CacheLimits | None = None) -> None:
        """Shapes: `lookup` returns the exchange of a name, if there is one."""
        self._lookup = lookup
        self._composites = CompositeCache(cache_limits)
        self._standing: dict[str, Route] = {}
        self._absent = Route((), live=True)  # part of all that was made while some alternate exchange was missing

    def route(self, exchange: Exchange, key: str) -> Route:
        """Return the route of a message by its routing key; its destinations are queues.

        Of a dynamic exchange it leads nowhere and is live as long as that exchange is dynamic for the same reasons.
        Cost: the exchange's own look-up, where neither another exchange is bound to it nor an alternate set.
        """
        if exchange.alternate is None and not exchange.onward:
            return exchange.route(key)
        if self.dynamic(exchange):
            return self._standing_route(exchange)
        route = exchange.route(key)
        if not exchange.leads(route.destinations):
            if exchange.alternate is None:
                return route
        elif not exchange.onward or not any(isinstance(known, Exchange) for known in route.destinations):
            return route
        composite = self._composites.entries.get((exchange.name, key))
        if composite is not None and composite.live:
            return composite
        return self._compose(exchange, key)

    def queues(self, exchange: Exchange, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the queues of one message that has several routing keys, or none.

        Cost: a look at the route cache where there is one key and nothing else counts.
        """
        if len(keys) == 1 and not self.dynamic(exchange):
            return self.route(exchange, keys[0]).destinations
        return self.match(exchange, keys[0], fields, keys[1:]) if keys else ()

    def dynamic(self, exchange: Exchange) -> bool:
        """Return whether a message from this exchange can reach one that looks at its headers or properties."""
        if exchange.alternate is None and not exchange.onward:
            return exchange.by_headers
        return any(reached.by_headers for reached in self._reachable(exchange))

    def match(
        self, exchange: Exchange, key: str, fields: MessageFields, more_keys: Sequence[str] = ()
    ) -> tuple[Any, ...]:
        """Return the queues of one message by all there is to know of it.

        Shapes: `more_keys` are those of CC and BCC: an alternate exchange is for messages none of whose keys matched.
        """
        keys = (key, *more_keys)
        return self._walk(exchange, lambda reached: reached.match(keys, fields))[0]

    def exchange_changed(self, name: str) -> None:
        """End the routes that the exchange of this name may change: it was declared or deleted, or got an alternate.

        Called behind the change. What a binding changes, or the setter of `alternate`, ends without it.
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
        """Return the queues that are reached, each once, and whether no alternate exchange was missing."""
        queues: dict[Any, None] = {}
        reached = {exchange: None}
        pending = [exchange]
        complete = True
        for current in pending:  # grows on the way
            destinations = follow(current)
            if current.alternate is not None and not current.leads(destinations):
                alternate = self._alternate(current)
                if alternate is not None:
                    destinations = (*destinations, alternate)
                complete = complete and alternate is not None
            for destination in destinations:
                if not isinstance(destination, Exchange):
                    queues[destination] = None
                elif destination not in reached:
                    reached[destination] = None
                    pending.append(destination)
        return tuple(queues), complete

    def _reachable(self, exchange: Exchange) -> dict[Exchange, None]:
        """Return the exchanges that a message may come through, whatever its key."""
        reached = {exchange: None}
        pending = [exchange]
        for current in pending:  # grows on the way
            alternate = self._alternate(current)
            for destination in current.onward if alternate is None else (*current.onward, alternate):
                if destination not in reached:
                    reached[destination] = None
                    pending.append(destination)
        return reached

    def _standing_route(self, exchange: Exchange) -> Route:
        known = self._standing.get(exchange.name)
        if known is None or not known.live:
            reachable = self._reachable(exchange)
            parts = [reached.standing for reached in reachable]
            if any(reached.alternate is not None and self._alternate(reached) is None for reached in reachable):
                parts.append(self._absent)
            known = self._standing[exchange.name] = Route((), live=True, parts=parts)
        return known

    def _alternate(self, exchange: Exchange) -> Exchange | None:
        name = exchange.alternate
        return self._lookup(name) if name else None
