"""The fanout exchange."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.exchange import Exchange
from broker.routing.message_fields import MessageFields
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route


class FanoutExchange(Exchange):
    """Leads every message to all destinations: one route, whatever the key."""

    type = "fanout"

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._destinations: Destinations = {}
        self._route: Route | None = None

    def route(self, key: str) -> Route:
        """Return the one route."""
        if self._route is None:
            self._route = Route(tuple(self._destinations), live=True)
        return self._route

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return all destinations."""
        return self.route("").destinations

    def _attach(
        self, destination: Hashable, key: str, arguments: Mapping[str, Any], limits: PatternLimits | None
    ) -> None:
        if count_up(self._destinations, destination):
            self._drop_routes()

    def _detach(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> None:
        if destination in self._destinations and count_down(self._destinations, destination):
            self._drop_routes()

    def _end_routes_to(self, destination: Hashable) -> None:
        del self._destinations[destination]
        self._drop_routes()

    def _drop_routes(self) -> None:
        if self._route is not None:
            self._route.end()
            self._route = None
