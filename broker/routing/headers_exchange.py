"""The headers exchange."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from broker.routing.bundle import binding_identity
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, MessageFields
from broker.routing.headers import HeadersPredicate, comparable_headers
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route


class HeadersExchange(Exchange):
    """Routes a message to the destinations whose binding arguments its headers satisfy."""

    type = "headers"
    by_headers = True

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        super().__init__(name, properties)
        self._predicates: dict[tuple[Hashable, Hashable], HeadersPredicate] = {}

    def route(self, key: str) -> Route:
        """Return the standing route, because each message must be matched."""
        return self.standing

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Cost: all bindings, as in RabbitMQ."""
        return self.match_headers(fields.headers) + self.listeners.match(keys)

    def matches(self, key: str, arguments: Mapping[str, Any], keys: Sequence[str], fields: MessageFields) -> bool:
        """Return whether the headers of a message satisfy a binding."""
        return HeadersPredicate(arguments).matches(comparable_headers(fields.headers))

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Cost: all bindings, as in RabbitMQ."""
        comparable = comparable_headers(headers)
        matched: dict[Any, None] = {}
        parted = self._parted
        for (destination, _identity), predicate in self._predicates.items():
            if destination not in matched and destination not in parted and predicate.matches(comparable):
                matched[destination] = None
        return tuple(matched)

    def _attach(
        self, destination: Hashable, key: str, arguments: Mapping[str, Any], limits: PatternLimits | None
    ) -> None:
        self._predicates[destination, binding_identity(key, arguments)] = HeadersPredicate(arguments)

    def _detach(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> None:
        del self._predicates[destination, binding_identity(key, arguments)]

    def _end_routes_to(self, destination: Hashable) -> None:
        """Do nothing: nothing is cached."""

    def _drop_routes(self) -> None:
        """Do nothing: the only route is the standing one, which the exchange ends itself."""
