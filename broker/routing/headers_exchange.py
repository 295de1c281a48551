"""The headers exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.routing.binding import Binding
from broker.routing.exchange import Exchange
from broker.routing.headers import HeadersPredicate, comparable_headers
from broker.routing.message_fields import MessageFields
from broker.routing.route import Route


class HeadersExchange(Exchange):
    """Leads a message to the destinations whose binding arguments its headers satisfy."""

    type = "headers"
    by_headers = True

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._predicates: dict[Binding, HeadersPredicate] = {}

    def route(self, key: str) -> Route:
        """Return the standing route: each message asks match."""
        return self.standing

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Cost: all bindings, as in RabbitMQ."""
        return self.match_headers(fields.headers)

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Cost: all bindings, as in RabbitMQ."""
        comparable = comparable_headers(headers)
        matched: dict[Any, None] = {}
        for binding, predicate in self._predicates.items():
            if binding.destination not in matched and predicate.matches(comparable):
                matched[binding.destination] = None
        return tuple(matched)

    def _attach(self, binding: Binding) -> None:
        self._predicates[binding] = HeadersPredicate(binding.arguments)

    def _detach(self, binding: Binding) -> None:
        del self._predicates[binding]

    def _drop_routes(self) -> None:
        """Do nothing: there are none beside the standing one, which the exchange ends itself."""
