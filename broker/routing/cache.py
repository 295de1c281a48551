"""The caches of a vhost: routes through several exchanges, and the resolved publishes of each user.

Their base class also serves the cache of a single exchange (route_cache).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from broker.routing.route import Dependent, Route

ENTRY_BYTES: Final = 400
"""The approximate memory of an entry without its key and destinations."""

SKIPPED_WINDOWS_MAX: Final = 8
EVICTED_SHARE: Final = 64
EXCHANGES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """The bounds of one cache, and the number of misses after which it decides whether caching pays.

    The window should be several times `entries`, so that a publisher that cycles through its keys has begun its second
    cycle before the cache decides.
    """

    entries: int = 65536
    cache_bytes: int = 32 * 1024 * 1024
    window: int = 4 * 65536


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A cache bounded in entries and bytes, which evicts its oldest entries when it is full. It admits a key at its
    second miss, and nothing for some time when caching is not worth it.

    First misses are recorded as hashes in two generations, each for half as many keys as the cache may have entries, so
    that keys that would be evicted before their next use are not admitted. After a window of misses in which the cache
    grew by less than a tenth of the window, it admits nothing for one window; if that repeats, for two, four and at
    most eight. Its entries are still found. Callers read `entries` themselves, so that a hit costs one look-up.

    Shapes: `_gained` estimates by how many entries the cache has grown in the current window.
    Cost: O(1) amortised, for an eviction too.
    """

    __slots__ = ("_gained", "_limits", "_missed", "_missed_before", "_misses", "_pause", "_skip", "_weights", "entries",
                 "used_bytes")  # fmt: skip

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self._limits = limits or CacheLimits()
        self._missed: set[int] = set()
        self._missed_before: set[int] = set()
        self._misses = 0
        self._gained = 0
        self._skip = 0
        self._pause = 1
        self._weights: dict[K, int] = {}
        self.entries: dict[K, V] = {}
        self.used_bytes = 0

    @property
    def bypassed(self) -> bool:
        """Whether nothing is being admitted at present."""
        return self._skip > 0

    def forget_misses(self) -> None:
        """Discard the recorded misses; the entries stay.

        A key that was missed once is then admitted at its third miss.
        """
        self._missed = set()
        self._missed_before = set()

    def _is_second_miss(self, key: K) -> bool:
        """Count a miss and return whether the key should be admitted."""
        if self._skip:
            self._skip -= 1
            return False
        self._misses += 1
        if self._misses > self._limits.window:
            useless = self._gained * 10 < self._limits.window
            self._misses = 0
            self._gained = 0
            if not useless:
                self._pause = 1
            else:
                self._skip = self._pause * self._limits.window
                self._pause = min(2 * self._pause, SKIPPED_WINDOWS_MAX)
                self.forget_misses()
                return False
        digest = hash(key)
        if digest in self._missed or digest in self._missed_before:
            return True
        if len(self._missed) > self._limits.entries // 2:
            self._missed_before = self._missed
            self._missed = set()
        self._missed.add(digest)
        return False

    def _insert(self, key: K, entry: V, weight_bytes: int) -> bool:
        """Add an entry for a new key and return True, or return False if the entry alone exceeds a bound."""
        limits = self._limits
        if weight_bytes > limits.cache_bytes or limits.entries < 1:
            return False
        if len(self.entries) >= limits.entries:
            self._evict()
        self._make_room(weight_bytes)
        self.entries[key] = entry
        self._weights[key] = weight_bytes
        self.used_bytes += weight_bytes
        self._gained += 1
        return True

    def _make_room(self, wanted_bytes: int = 0) -> None:
        """Evict the oldest entries until this many bytes are free or the cache is empty."""
        while self.entries and self.used_bytes + wanted_bytes > self._limits.cache_bytes:
            self._evict()

    def _evict(self) -> None:
        # Evict many at once: finding the first key of a dict passes over the slots of all keys deleted before it.
        oldest = list(islice(self.entries, len(self.entries) // EVICTED_SHARE + 1))
        for old_key in oldest:
            self._discard(old_key)
        self._gained -= len(oldest)

    def _discard(self, key: K) -> V:
        self.used_bytes -= self._weights.pop(key)
        return self.entries.pop(key)

    def _clear(self) -> None:
        self.entries.clear()
        self._weights.clear()
        self.used_bytes = 0


class CompositeCache(BoundedCache[tuple[str, str], Route]):
    """A cache of routes through several exchanges, by the name of the first exchange and the routing key.

    A hit is `entries.get(name_and_key)` and a test of `live`; an ended route is replaced when it is resolved again.
    """

    __slots__ = ()

    def offer(self, name_and_key: tuple[str, str], destinations: tuple[Any, ...], parts: Sequence[Route]) -> Route:
        """Return a new route for a key without a live route; it is live if it was cached and its parts are live."""
        if name_and_key in self.entries:
            self._discard(name_and_key)
            self._gained -= 1
        elif not self._is_second_miss(name_and_key):
            return Route(destinations)
        route = Route(destinations, live=True, parts=parts)
        weight_bytes = ENTRY_BYTES + len(name_and_key[1]) + 8 * len(destinations) + 100 * len(parts)
        if route.live and not self._insert(name_and_key, route, weight_bytes):
            route.end()
            return Route(destinations)
        return route

    def _discard(self, name_and_key: tuple[str, str]) -> Route:
        route = super()._discard(name_and_key)
        route.end()
        return route


class ResolvedPublish(Dependent):
    """An entry that leaves its publish cache when its route ends.

    Shapes: `cache` is None while the entry is not in a cache.
    """

    __slots__ = ("cache", "key", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.cache: PublishCache[Any, Any] | None = None
        self.key = b""

    def end(self) -> None:
        """Leave the cache, because the route has ended."""
        cache, self.cache = self.cache, None
        if cache is not None:
            cache.ended(self)

    def enter(self, cache: PublishCache[Any, Any], key: bytes) -> None:
        """Record the cache that the entry is now in, and its key there."""
        self.cache, self.key = cache, key
        self.route.add_dependent(self)

    def mark_uncached(self) -> None:
        """Record that the entry is not in a cache any more."""
        self.cache = None
        self.route.remove_dependent(self)


E = TypeVar("E", bound=ResolvedPublish)
X = TypeVar("X", bound=ResolvedPublish)


class PublishCache(BoundedCache[bytes, E], Generic[E, X]):
    """A cache of resolved publishes by the payload of basic.publish, for one user in one vhost.

    A hit is `entries.get(payload)` and a test of `entry.route.live`. When a route ends, the placeholder `nothing`
    replaces its entries, so that they keep no deleted queues in memory. Their payloads are admitted at once when they
    are resolved again. `exchanges` maps an exchange name, as the short string in payloads, to the resolved exchange,
    until its route ends. Entries and exchanges depend on permissions: call `drop_all` when permissions change.
    """

    __slots__ = ("_nothing", "exchanges")

    def __init__(self, nothing: E, limits: CacheLimits | None = None) -> None:
        """Shapes: the route of `nothing` is not live."""
        super().__init__(limits)
        self._nothing = nothing
        self.exchanges: dict[bytes, X] = {}

    def offer(self, payload: bytes, entry: E) -> bool:
        """Add an entry at the second miss of its payload, or at once in place of an ended entry.

        Return whether it was added. An entry whose route is not live is never added, and its miss is not counted.
        """
        known = payload in self.entries
        if known:
            self._discard(payload)
            self._gained -= 1
        if not entry.route.live or not (known or self._is_second_miss(payload)):
            return False
        # A destination counts twice: an entry keeps the route's tuple alive, and most entries keep a sorted copy.
        weight_bytes = ENTRY_BYTES + len(payload) + 16 * len(entry.route.destinations)
        added = self._insert(payload, entry, weight_bytes)
        if added:
            entry.enter(self, payload)
        return added

    def add_exchange(self, name: bytes, exchange: X) -> None:
        """Cache the resolved exchange of a name; a full cache of exchanges is emptied first."""
        if len(self.exchanges) >= EXCHANGES_MAX:
            self._forget_exchanges()
        known = self.exchanges.get(name)
        if known is not None:
            known.mark_uncached()
        self.exchanges[name] = exchange
        exchange.enter(self, name)

    def ended(self, resolved: ResolvedPublish) -> None:
        """Drop an entry or an exchange whose route has ended."""
        key = resolved.key
        if self.exchanges.get(key) is resolved:
            del self.exchanges[key]
            return
        light_bytes = ENTRY_BYTES + len(key)
        self.entries[key] = self._nothing
        self.used_bytes -= self._weights[key] - light_bytes
        self._weights[key] = light_bytes

    def drop_all(self) -> None:
        for entry in self.entries.values():
            entry.mark_uncached()
        self._clear()
        self._forget_exchanges()

    def _discard(self, payload: bytes) -> E:
        entry = super()._discard(payload)
        entry.mark_uncached()
        return entry

    def _forget_exchanges(self) -> None:
        for exchange in self.exchanges.values():
            exchange.mark_uncached()
        self.exchanges.clear()
