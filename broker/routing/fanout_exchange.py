"""The fanout exchange, and two fanout exchanges with a memory, which is an internal queue: one replays the last
messages, the other drops duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from broker.routing.bundle import Arguments
from broker.routing.cache import CacheLimits
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, MessageFields
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route
from broker.routing.route_cache import RouteCache


class FanoutExchange(Exchange):
    """An exchange that routes every message to all destinations, by one route for all keys unless it has listeners."""

    type = "fanout"

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        super().__init__(name, properties)
        self._cache_limits = cache_limits
        self._routes_by_key: RouteCache | None = None  # routes by key while there are listeners
        self._route: Route | None = None

    def route(self, key: str) -> Route:
        if self.listeners.present:
            return self._route_by_key(key)
        if self._route is None:
            self._route = Route(tuple(self.bundles), live=True)
        return self._route

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        return (*self.bundles, *self.listeners.match(keys))

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        if destination not in self.bundles:
            self._drop_routes()

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        bundle = self.bundles.get(destination)
        if destination not in self._unrouted and (bundle is None or len(bundle) == 0):
            self._drop_routes()

    def _drop_routes(self) -> None:
        if self._route is not None:
            self._route.end()
            self._route = None
        if self._routes_by_key is not None:
            self._routes_by_key.drop_all()

    def _route_by_key(self, key: str) -> Route:
        if self._routes_by_key is None:
            self._routes_by_key = RouteCache(self._cache_limits)
        known = self._routes_by_key.entries.get(key)
        if known is not None and known.live:
            return known
        return self._routes_by_key.offer(key, (*self.bundles, *self.listeners.match((key,))))


DEDUPLICATION_HEADER: Final = "x-deduplication-header"
HISTORY_PREFIX: Final = "amq.history."
SEEN_PREFIX: Final = "amq.deduplication."
NO_STORE: Final = "x-recent-history-no-store"
LENGTH: Final = "x-recent-history-length"
LENGTH_DEFAULT: Final = 20  # as in the plugin
LENGTH_MAX: Final = 10_000  # a new binding copies the messages within one turn of the loop
HISTORY_BYTES: Final = 16 << 20  # the most bytes of message bodies in a history
TIME_MAX_MS: Final = 315_360_000_000  # ten years, as for other TTLs


class MemoryExchange(FanoutExchange):
    """A fanout exchange with a memory, to which it also routes; a message that reaches nothing else is unroutable.

    Shapes: `memory_arguments` are the arguments of the memory's queue, which is durable if the exchange is durable and
        `lasts` is set.
    """

    by_headers = True  # each message is matched separately
    memory_prefix: str
    memory_arguments: Mapping[str, Any]
    lasts = True

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        super().__init__(name, properties)
        self.memory: Hashable | None = None
        self._is_known: Callable[[Any], bool] | None = None

    def remember_in(self, memory: Hashable, is_known: Callable[[Any], bool] | None) -> None:
        """Set the memory and, for a deduplicating exchange, a function that returns whether a header value is known."""
        self.memory = memory
        self._is_known = is_known

    def route(self, key: str) -> Route:
        return self.standing

    def is_routed(self, destinations: Sequence[Any]) -> bool:
        """Return whether any of the destinations is neither a listener nor the memory."""
        return super().is_routed([destination for destination in destinations if destination is not self.memory])


class HistoryExchange(MemoryExchange):
    """A fanout exchange that keeps the last messages, for destinations that are bound later.

    Source: RabbitMQ's plugin rabbitmq_recent_history_exchange, its arguments and error texts.
    """

    type = "x-recent-history"
    memory_prefix = HISTORY_PREFIX

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        """Check the arguments. Raises: ValueError."""
        super().__init__(name, properties)
        length = self.arguments.get(LENGTH, LENGTH_DEFAULT)
        if isinstance(length, bool) or not isinstance(length, int) or length <= 0:
            raise ValueError(f"Invalid argument {length!r}, '{LENGTH}' must be a positive integer")
        if length > LENGTH_MAX:
            raise ValueError(f"Invalid argument {length}, '{LENGTH}' must be at most {LENGTH_MAX}")
        self.memory_arguments = {"x-max-length": length, "x-max-length-bytes": HISTORY_BYTES}

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return all destinations, and the memory unless a header excludes the message from it."""
        found = super().match(keys, fields)
        return found if self.memory is None or fields.headers.get(NO_STORE) is True else (self.memory, *found)


class DeduplicationExchange(MemoryExchange):
    """A fanout exchange that drops a message if the value of its header x-deduplication-header is known.

    Source: the plugin rabbitmq-message-deduplication, its arguments and error texts.
    """

    type = "x-message-deduplication"
    memory_prefix = SEEN_PREFIX

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        """Check the arguments. Raises: ValueError."""
        super().__init__(name, properties)
        arguments = self.arguments
        size = _positive(arguments.get("x-cache-size"))
        if size is None:
            raise ValueError("Missing or invalid argument, 'x-cache-size' must be an integer greater than 0")
        memory_arguments: dict[str, Any] = {"x-max-length": size}
        if "x-cache-ttl" in arguments:
            ttl_ms = _positive(arguments["x-cache-ttl"])
            if ttl_ms is None:
                raise ValueError("Invalid argument, 'x-cache-ttl' must be an integer greater than 0")
            memory_arguments["x-message-ttl"] = min(ttl_ms, TIME_MAX_MS)
        persistence = arguments.get("x-cache-persistence", "memory")
        if persistence not in ("disk", "memory"):
            raise ValueError("Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'")
        self.lasts = persistence == "disk"
        self.memory_arguments = {**memory_arguments, "x-message-deduplication": True}

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return all destinations, and the memory if the message has the header; return nothing for a duplicate."""
        found = super().match(keys, fields)
        value = fields.headers.get(DEDUPLICATION_HEADER)
        if self.memory is None or self._is_known is None or value is None:
            return found
        return () if self._is_known(value) else (self.memory, *found)


def cache_ttl_ms(headers: Mapping[str, Any]) -> int | None:
    """Return for how long a message is to be remembered, or None without a valid header x-cache-ttl."""
    ttl_ms = _positive(headers.get("x-cache-ttl"))
    return None if ttl_ms is None else min(ttl_ms, TIME_MAX_MS)


def _positive(value: Any) -> int | None:
    """Return an integer above 0, also from text, as the plugin does, or None for any other value."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
