"""The fanout exchange."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from broker.routing.cache import CacheLimits
from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, MessageFields
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route
from broker.routing.route_cache import RouteCache


class FanoutExchange(Exchange):
    """Routes every message to all destinations: one route for all keys, unless there are listeners."""

    type = "fanout"

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        super().__init__(name, properties)
        self._destinations: Destinations = {}
        self._cache_limits = cache_limits
        self._heard: RouteCache | None = None  # routes by key while there are listeners
        self._route: Route | None = None

    def route(self, key: str) -> Route:
        """Return the only route, or the route of a key while there are listeners."""
        if self.listeners.present:
            return self._heard_route(key)
        if self._route is None:
            self._route = Route(tuple(self._destinations), live=True)
        return self._route

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return all destinations."""
        return (*self._destinations, *self.listeners.match(keys))

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
        if self._heard is not None:
            self._heard.drop_all()

    def _heard_route(self, key: str) -> Route:
        if self._heard is None:
            self._heard = RouteCache(self._cache_limits)
        known = self._heard.entries.get(key)
        if known is not None and known.live:
            return known
        return self._heard.offer(key, (*self._destinations, *self.listeners.match((key,))))
