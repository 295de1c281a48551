"""The modulus hash exchange."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from broker.routing.cache import CacheLimits
from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, KeyedExchange, MessageFields
from broker.routing.hash_buckets import digest
from broker.routing.pattern import PatternLimits


class ModulusExchange(KeyedExchange):
    """Routes a message to one of its destinations, the same for the same routing key while the bindings stay.

    The hash of the key, modulo the number of bindings, chooses among them in the order of their destinations' names.
    Source: RabbitMQ 4.3, rabbit_exchange_type_modulus_hash.
    """

    type = "x-modulus-hash"
    chooses = True

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        super().__init__(name, properties, cache_limits)
        self._destinations: Destinations = {}
        self._in_order: list[Any] | None = None  # each as often as it is bound

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the only destination of a message; of several keys the first one counts."""
        return self.route(keys[0]).destinations

    def _attach(
        self, destination: Hashable, key: str, arguments: Mapping[str, Any], limits: PatternLimits | None
    ) -> None:
        count_up(self._destinations, destination)
        self._changed()

    def _detach(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> None:
        if destination in self._destinations:
            count_down(self._destinations, destination)
            self._changed()

    def _end_routes_to(self, destination: Hashable) -> None:
        del self._destinations[destination]
        self._changed()

    def _changed(self) -> None:
        self._in_order = None
        self.cache.drop_all()

    def _resolve(self, key: str) -> tuple[Any, ...]:
        if self._in_order is None:
            self._in_order = [
                destination
                for destination in sorted(self._destinations, key=_rank)
                for _ in range(self._destinations[destination])
            ]
        return (self._in_order[digest(key) % len(self._in_order)],) if self._in_order else ()


def _rank(destination: Any) -> tuple[bool, str]:
    """Return the place of a destination: exchanges come before queues, as in RabbitMQ."""
    return not isinstance(destination, Exchange), destination.name
