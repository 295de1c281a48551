"""The steps of the route cache: routing key -> route per exchange, exchange and key -> route through others per vhost,
publish payload -> entry per user.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from broker.routing.route import Route

__all__ = ["ENTRY_BYTES", "BoundedCache", "CacheLimits", "CompositeCache", "PublishCache", "Route", "RouteCache"]

ENTRY_BYTES: Final = 400
"""What an entry costs beside its key and its destinations: places in two dicts, the objects, a first sight."""

SKIPPED_WINDOWS: Final = 8
SCANS_PER_ADMISSION: Final = 64
"""How often an admitted key may be looked at to find out whether a changed pattern matches it."""


class Routed(Protocol):
    """What a publish cache holds: anything that was resolved through a route."""

    @property
    def route(self) -> Route:
        """Return the route whose `live` says whether the entry still holds."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Bounds of one cache, and the number of misses after which it judges whether it is of use.

    Invariant: the window is several times the entries, or a publisher that goes round its keys would be judged before
        its second round.
    """

    entries: int = 65536
    cache_bytes: int = 32 * 1024 * 1024
    window: int = 4 * 65536


class Admission:
    """Admits a key on its second sight, and nothing for a while when admitting brings nothing.

    First sights are kept as hashes, in two generations that together are no larger than the cache: a key that would be
    evicted before it comes back is not admitted in the first place. After each window of misses, if the cache grew
    by less than a tenth of them (one-off keys, a working set over the bounds, a storm of bindings), it takes nothing in
    for eight windows; what it holds goes on to be hit. Misses alone are counted, so that a hit stays one look-up.
    """

    __slots__ = ("_gained", "_generation", "_misses", "_old_sights", "_sights", "_skip", "_window")

    def __init__(self, limits: CacheLimits) -> None:
        self._generation = limits.entries // 2 + 1
        self._window = limits.window
        self._sights: set[int] = set()
        self._old_sights: set[int] = set()
        self._misses = 0
        self._gained = 0
        self._skip = 0

    @property
    def bypassed(self) -> bool:
        """Return whether nothing is being admitted at present."""
        return self._skip > 0

    def second_sight(self, key: Hashable) -> bool:
        """Count a miss and return whether the key should be admitted."""
        if self._skip:
            self._skip -= 1
            return False
        self._misses += 1
        if self._misses > self._window:
            if self._gained * 10 < self._window:
                self._skip = SKIPPED_WINDOWS * self._window
            self._misses = 0
            self._gained = 0
        digest = hash(key)
        if digest in self._sights or digest in self._old_sights:
            return True
        if len(self._sights) >= self._generation:
            self._old_sights = self._sights
            self._sights = set()
        self._sights.add(digest)
        return False

    def gained(self, count: int) -> None:
        """Count entries taken in, or, below zero, entries evicted and storms weathered."""
        self._gained += count


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Entries bounded in number and bytes; when full the oldest eighth goes.

    Read `entries` itself. Cost: O(1) amortised, for an eviction too.
    """

    __slots__ = ("_admission", "_limits", "_weights", "entries", "misses", "used_bytes")

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self._limits = limits or CacheLimits()
        self._admission = Admission(self._limits)
        self._weights: dict[K, int] = {}
        self.entries: dict[K, V] = {}
        self.used_bytes = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def bypassed(self) -> bool:
        """Return whether nothing is being admitted at present."""
        return self._admission.bypassed

    def _insert(self, key: K, entry: V, weight_bytes: int) -> bool:
        """Take in an entry and return True, or return False if it alone passes the bound. The key is not there yet."""
        limits = self._limits
        if weight_bytes > limits.cache_bytes or limits.entries < 1:
            return False
        while len(self.entries) >= limits.entries or self.used_bytes + weight_bytes > limits.cache_bytes:
            # Many at once: to find the first key of a dict is to pass over the places of all keys deleted before it.
            oldest = list(islice(self.entries, len(self.entries) // 8 + 1))
            for old_key in oldest:
                self._discard(old_key)
            self._admission.gained(-len(oldest))
        self.entries[key] = entry
        self._weights[key] = weight_bytes
        self.used_bytes += weight_bytes
        self._admission.gained(1)
        return True

    def _discard(self, key: K) -> V:
        self.used_bytes -= self._weights.pop(key)
        return self.entries.pop(key)

    def _clear(self) -> None:
        self.entries.clear()
        self._weights.clear()
        self.used_bytes = 0


class RouteCache(BoundedCache[str, Route]):
    """Routes of one exchange by routing key.

    Cost: what drop_where and drop_all cost the admissions since the last drop_all have paid for.
    """

    __slots__ = ("_scans", "hits")

    def __init__(self, limits: CacheLimits | None = None) -> None:
        super().__init__(limits)
        self.hits = 0
        self._scans = 0

    def offer(self, key: str, destinations: tuple[Any, ...]) -> Route:
        """Return the route of a key that is not cached: live if it was admitted, else for this once."""
        self.misses += 1
        if self._admission.second_sight(key):
            route = Route(destinations, live=True)
            if self._insert(key, route, ENTRY_BYTES + len(key) + 8 * len(destinations)):
                self._scans += SCANS_PER_ADMISSION
                return route
        return Route(destinations)

    def drop(self, key: str) -> None:
        """End the route of one key."""
        if key in self.entries:
            self._discard(key)

    def drop_where(self, touched: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """End the routes of those keys that `touched` picks out of all.

        A storm of bindings must not look at every key each time: when the admissions no longer pay, every route ends.
        To bind as often as to publish ends in the bypass, too.
        """
        if not self.entries:
            return
        self._scans -= len(self.entries)
        if self._scans < 0:
            self.drop_all()
            return
        stale = touched(list(self.entries))
        for key in stale:
            self._discard(key)
        if stale:
            self._admission.gained(-1)

    def drop_all(self) -> None:
        """End every route."""
        self._scans = 0
        if self.entries:
            routes = list(self.entries.values())
            self._clear()
            for route in routes:
                route.end()
            self._admission.gained(-1)

    def _discard(self, key: str) -> Route:
        route = super()._discard(key)
        route.end()
        return route


class CompositeCache(BoundedCache[tuple[str, str], Route]):
    """Routes through several exchanges, by the name of the first and the routing key.

    A hit is `entries.get(name_and_key)` and a test of `live`; what has ended gives way when it is made again.
    """

    __slots__ = ()

    def offer(self, name_and_key: tuple[str, str], destinations: tuple[Any, ...], parts: Sequence[Route]) -> Route:
        """Return the route of a key that is not cached or has ended: live if it was admitted and its parts live."""
        self.misses += 1
        if name_and_key in self.entries:
            self._discard(name_and_key)
            self._admission.gained(-1)
        elif not self._admission.second_sight(name_and_key):
            return Route(destinations)
        route = Route(destinations, live=True, parts=parts)
        weight_bytes = ENTRY_BYTES + len(name_and_key[1]) + 8 * len(destinations) + 100 * len(parts)
        if route.live and not self._insert(name_and_key, route, weight_bytes):
            route.end()
        return route

    def _discard(self, name_and_key: tuple[str, str]) -> Route:
        route = super()._discard(name_and_key)
        route.end()
        return route


E = TypeVar("E", bound=Routed)


class PublishCache(BoundedCache[bytes, E]):
    """Entries by the bytes of basic.publish, for one user in one vhost.

    A hit is `entries.get(payload)` and a test of `entry.route.live`. What was missing or dead is resolved anew, from
    the exchange's name on, and offered. Rights belong to the entries, so a change of rights calls drop_all.
    """

    __slots__ = ()

    def offer(self, payload: bytes, entry: E) -> bool:
        """Take in an entry whose route is live, on the second sight of its payload, and return whether it stayed.

        A dead entry with the same payload gives way at once.
        """
        self.misses += 1
        known = payload in self.entries
        if known:
            self._discard(payload)
            self._admission.gained(-1)
        elif not self._admission.second_sight(payload):
            return False
        if not entry.route.live:
            return False
        # A destination counts twice: an entry keeps the route's tuple alive, and most keep a sorted copy of it.
        return self._insert(payload, entry, ENTRY_BYTES + len(payload) + 16 * len(entry.route.destinations))

    def drop_all(self) -> None:
        """Forget every entry."""
        self._clear()
