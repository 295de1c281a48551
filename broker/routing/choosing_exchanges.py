"""The exchanges that send each message to one destination: consistent hash, modulus hash, and random."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from math import log
from typing import Any, Final

from broker.routing.bundle import Arguments, freeze_value
from broker.routing.cache import CacheLimits
from broker.routing.destinations import count_down, count_up
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, KeyedExchange, MessageFields
from broker.routing.headers_exchange import BindingArgumentError
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route

PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
BUCKETS: Final = 65536
MASK: Final = 2**64 - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
_LARGEST_DIGEST: Final = 2.0**64


class HashBuckets:
    """A map from values to destinations, in proportion to the weights of the destinations.

    A value is hashed to one of 65536 buckets. Each destination has a pseudo-random draw for each bucket, and the least
    draw wins the bucket. A draw depends only on the bucket, the destination and its weight. So a new destination takes
    over its share and no more, a removed one leaves its share to the others, and neither the order of bindings nor a
    restart changes any owner. A destination that is bound more than once has the greatest of its weights.

    Cost: `pick` is one look-up for a bucket used since the last change, else one draw for each destination.
    Source: weighted rendezvous hashing (Thaler and Ravishankar 1998; Schindelhauer and Schomaker 2005).
    """

    def __init__(self) -> None:
        self._weights: dict[Any, dict[int, int]] = {}
        self._draws: dict[Any, tuple[int, int]] = {}  # seed and weight in force
        self._owners: dict[int, Any] = {}

    def add(self, destination: Hashable, identity: str, weight: int) -> bool:
        """Count one more binding of a destination and return whether that changed its share.

        Shapes: `identity` is the same text after each restart.
        """
        weights = self._weights.setdefault(destination, {})
        count_up(weights, weight)
        known = self._draws.get(destination)
        if known is not None and known[1] >= weight:
            return False
        self._draws[destination] = (digest(identity), weight)
        self._owners.clear()
        return True

    def remove(self, destination: Hashable, weight: int) -> bool:
        """Remove one binding of a destination and return whether that changed its share.

        Raises: KeyError if it has no binding with this weight.
        """
        weights = self._weights[destination]
        count_down(weights, weight)
        seed, in_force = self._draws[destination]
        if in_force in weights:
            return False
        if weights:
            self._draws[destination] = (seed, max(weights))
        else:
            del self._weights[destination]
            del self._draws[destination]
        self._owners.clear()
        return True

    def forget(self, destination: Hashable) -> None:
        """Remove a destination with all its bindings. Raises: KeyError if it has none."""
        del self._weights[destination]
        del self._draws[destination]
        self._owners.clear()

    def pick(self, value: str) -> Any | None:
        """Return the destination of a value, or None if there are no destinations."""
        draws = self._draws
        if not draws:
            return None
        bucket = digest(value) % BUCKETS
        owner = self._owners.get(bucket)
        if owner is None:
            mark = bucket * GOLDEN
            owner = min(draws, key=lambda destination: _draw(mark, *draws[destination]))
            self._owners[bucket] = owner
        return owner


def digest(value: str) -> int:
    """Return a 64-bit hash of a text, which is the same in every process."""
    return int.from_bytes(blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _draw(mark: int, seed: int, weight: int) -> tuple[float, int]:
    """Return an exponentially distributed draw with the weight as its rate, and the seed, which decides a tie."""
    return -log((mixed((seed + mark) & MASK) + 1) / _LARGEST_DIGEST) / weight, seed


def mixed(bits: int) -> int:
    """Return the 64 bits mixed by the finaliser of splitmix64, so that they look random."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


class HashExchange(KeyedExchange):
    """An exchange that routes all messages with one key to one destination, chosen in proportion to the weights.

    The binding key is the weight. The argument hash-header or hash-property selects a value used in place of the
    routing key; messages without it are all routed to one destination.

    Source: RabbitMQ, rabbitmq_consistent_hash_exchange; error texts are the plugin's.
    """

    type = "x-consistent-hash"
    chooses = True

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        """Check the arguments. Raises: ValueError."""
        super().__init__(name, properties, cache_limits)
        self._header = _text_argument(self.arguments, "hash-header")
        self._property = _text_argument(self.arguments, "hash-property")
        if self._header is not None and self._property is not None:
            raise ValueError("hash-header and hash-property are mutually exclusive")
        if self._property is not None and self._property not in PROPERTIES:
            raise ValueError(f"Unsupported property: {self._property}")
        self.by_headers = self._header is not None or self._property is not None
        self._buckets = HashBuckets()

    def route(self, key: str) -> Route:
        return self.standing if self.by_headers else super().route(key)

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the only destination of a message, chosen by header, property or the first key, and the listeners."""
        if self._header is not None:
            value = fields.headers.get(self._header)
            found = self._resolve(value if isinstance(value, str) else repr(freeze_value(value)))
            return found + self.listeners.match(keys)
        if self._property is not None:
            return self._resolve(fields.property(self._property) or "") + self.listeners.match(keys)
        return self.route(keys[0]).destinations

    def _attach(self, destination: Any, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        identity = f"{'exchange' if isinstance(destination, Exchange) else 'queue'} {destination.name}"
        if self._buckets.add(destination, identity, parse_weight(key)):
            self.cache.drop_all()

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        if destination not in self._unrouted and self._buckets.remove(destination, parse_weight(key)):
            self.cache.drop_all()

    def _end_routes_to(self, destination: Hashable) -> None:
        self._buckets.forget(destination)  # it must not draw, because its share belongs to the others
        self.cache.drop_all()

    def _resolve(self, key: str) -> tuple[Any, ...]:
        destination = self._buckets.pick(key)
        return () if destination is None else (destination,)


def parse_weight(key: str) -> int:
    """Return a binding key as a weight. Raises: BindingArgumentError unless it is an integer above 0."""
    if not _INTEGER.match(key):
        erlang = f'<<"{key}">>' if key else "<<>>"
        raise BindingArgumentError(f"The binding key must be an integer: {erlang}")
    weight = int(key)
    if weight < 1:
        raise BindingArgumentError("The binding key must be greater than 0")
    return weight


def _text_argument(arguments: Mapping[str, Any], name: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"Invalid argument, '{name}' must be a string")
    return value


class ModulusExchange(KeyedExchange):
    """An exchange that routes all messages with one key to one destination while its bindings stay the same.

    The hash of the key, modulo the number of bindings, chooses one of the bindings, which are sorted by destination.
    Source: RabbitMQ 4.3, rabbit_exchange_type_modulus_hash.
    """

    type = "x-modulus-hash"
    chooses = True

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        super().__init__(name, properties, cache_limits)
        self._ranked: list[Any] | None = None  # the destinations in order, each as often as it is bound

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the only destination of a message, chosen by the first key, and the listeners."""
        return self.route(keys[0]).destinations

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        self._changed()

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        if destination not in self._unrouted:
            self._changed()

    def _end_routes_to(self, destination: Hashable) -> None:
        self._changed()

    def _changed(self) -> None:
        self._ranked = None
        self.cache.drop_all()

    def _resolve(self, key: str) -> tuple[Any, ...]:
        if self._ranked is None:
            self._ranked = [one for one in sorted(self.bundles, key=_rank) for _ in range(len(self.bundles[one]))]
        return (self._ranked[digest(key) % len(self._ranked)],) if self._ranked else ()


def _rank(destination: Any) -> tuple[bool, str]:
    """Return the sort key of a destination: exchanges precede queues, as in RabbitMQ."""
    return not isinstance(destination, Exchange), destination.name


CLASSIC: Final = "classic"


class RandomExchange(Exchange):
    """An exchange that routes each message by one of its bindings, all equally likely.

    The random sequence is seeded with the name. Cost: O(bindings) for the first message after a change.
    Source: RabbitMQ, rabbitmq_random_exchange.
    """

    type = "x-random"
    chooses = True
    by_headers = True  # each message is matched separately

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        super().__init__(name, properties)
        self._drawn_from: tuple[Any, ...] | None = None
        self._state = digest(name)

    def route(self, key: str) -> Route:
        return self.standing

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        among = self._drawn_from
        if among is None:
            bundles = self.bundles.items()
            among = self._drawn_from = tuple([one for one, bundle in bundles for _ in range(len(bundle))])
        listeners = self.listeners.match(keys)
        if not among:
            return listeners
        self._state = (self._state + GOLDEN) & MASK
        return (among[mixed(self._state) % len(among)], *listeners)

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        self._drop_routes()

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        if destination not in self._unrouted:
            self._drop_routes()

    def _drop_routes(self) -> None:
        self._drawn_from = None


class LocalRandomExchange(RandomExchange):
    """An exchange that routes each message to one of its classic queues at random; here all queues are local.

    Source: RabbitMQ 4, rabbit_exchange_type_local_random, error texts included.
    """

    type = "x-local-random"

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        if key:
            raise BindingArgumentError(f"Non empty binding '{key}' key not permitted")
        if isinstance(destination, Exchange):
            raise BindingArgumentError("Destination not found")
        kind = getattr(destination, "arguments", {}).get("x-queue-type", CLASSIC)
        if kind != CLASSIC:
            raise BindingArgumentError(f"Queue type rabbit_{kind}_queue not valid for this exchange type")
        super()._attach(destination, key, arguments, limits)
