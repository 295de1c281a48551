"""The exchanges that send each message to one destination at random, whatever its routing key."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, MessageFields
from broker.routing.hash_buckets import GOLDEN, MASK, digest, mixed
from broker.routing.headers import BindingArgumentError
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route

CLASSIC: Final = "classic"


class RandomExchange(Exchange):
    """Routes each message to the destination of one of its bindings, all equally likely.

    Its draws are a sequence seeded with its name. Cost: O(destinations) for the first message after a change.
    Source: RabbitMQ, rabbitmq_random_exchange.
    """

    type = "x-random"
    chooses = True
    by_headers = True  # each message is matched by itself, though by no header

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        super().__init__(name, properties)
        self._destinations: Destinations = {}
        self._drawn_from: tuple[Any, ...] | None = None
        self._state = digest(name)

    def route(self, key: str) -> Route:
        """Return the standing route: each message must be matched."""
        return self.standing

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the destination drawn for one message."""
        among = self._drawn_from
        if among is None:
            bindings = self._destinations.items()
            among = self._drawn_from = tuple([one for one, count in bindings for _ in range(count)])
        heard = self.listeners.match(keys)
        if not among:
            return heard
        self._state = (self._state + GOLDEN) & MASK
        return (among[mixed(self._state) % len(among)], *heard)

    def _attach(
        self, destination: Hashable, key: str, arguments: Mapping[str, Any], limits: PatternLimits | None
    ) -> None:
        count_up(self._destinations, destination)
        self._drawn_from = None

    def _detach(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> None:
        if destination in self._destinations:
            count_down(self._destinations, destination)
            self._drawn_from = None

    def _end_routes_to(self, destination: Hashable) -> None:
        del self._destinations[destination]
        self._drawn_from = None

    def _drop_routes(self) -> None:
        """Do nothing: no route is kept."""


class LocalRandomExchange(RandomExchange):
    """Routes each message to one of its classic queues at random; each queue is local to every broker.

    Source: RabbitMQ 4, rabbit_exchange_type_local_random, and its texts.
    """

    type = "x-local-random"

    def _attach(
        self, destination: Hashable, key: str, arguments: Mapping[str, Any], limits: PatternLimits | None
    ) -> None:
        if key:
            raise BindingArgumentError(f"Non empty binding '{key}' key not permitted")
        if isinstance(destination, Exchange):
            raise BindingArgumentError("Destination not found")
        kind = getattr(destination, "arguments", {}).get("x-queue-type", CLASSIC)
        if kind != CLASSIC:
            raise BindingArgumentError(f"Queue type rabbit_{kind}_queue not valid for this exchange type")
        super()._attach(destination, key, arguments, limits)
