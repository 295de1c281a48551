"""The direct exchange and the default exchange."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from broker.routing.bundle import Arguments
from broker.routing.cache import CacheLimits
from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.exchange import BARE, ExchangeProperties, KeyedExchange, MessageFields
from broker.routing.pattern import PatternLimits


class DirectExchange(KeyedExchange):
    """An exchange that routes a message to the destinations bound with exactly its routing key."""

    type = "direct"
    kind_of_patterns = "direct"

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        super().__init__(name, properties, cache_limits)
        self._keys: dict[str, Destinations] = {}

    def matches(self, key: str, arguments: Arguments, keys: Sequence[str], fields: MessageFields) -> bool:
        return key in keys

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        if count_up(self._keys.setdefault(key, {}), destination):
            self.cache.drop(key)

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        destinations = self._keys[key]
        if count_down(destinations, destination):
            if destination not in self._unrouted:
                self.cache.drop(key)
            if not destinations:
                del self._keys[key]

    def _resolve(self, key: str) -> tuple[Any, ...]:
        return tuple(self._keys.get(key, ()))


class DefaultExchange(KeyedExchange):
    """The exchange that routes a message to the queue named by its routing key, without any binding.

    It has no alternate exchange, and as the alternate of another exchange it routes nothing.
    Source: RabbitMQ, rabbit_exchange:route/2.
    """

    type = "direct"

    def __init__(self, lookup: Callable[[str], Any | None], cache_limits: CacheLimits | None = None) -> None:
        super().__init__("", ExchangeProperties(durable=True), cache_limits)
        self._lookup = lookup

    def set_alternate(self, name: str | None) -> bool:
        """Return False: there is no alternate, whatever a policy says."""
        return False

    def touch(self, queue_name: str) -> None:
        """End the route to a queue that has just been declared or deleted."""
        self.cache.drop(queue_name)

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        raise TypeError("the default exchange has implicit bindings only")

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        raise TypeError("the default exchange has implicit bindings only")

    def _resolve(self, key: str) -> tuple[Any, ...]:
        queue = self._lookup(key)
        return () if queue is None else (queue,)
