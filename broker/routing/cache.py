"""The steps of the route cache beside that of an exchange: exchange and key -> route through others per vhost, publish
payload -> entry per user; and what all of them share, bounds and admission.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from broker.routing.route import Route

__all__ = ["ENTRY_BYTES", "BoundedCache", "CacheLimits", "CompositeCache", "PublishCache"]

ENTRY_BYTES: Final = 400
"""What an entry costs beside its key and its destinations: places in two dicts, the objects, a first sight."""

SKIPPED_WINDOWS_MAX: Final = 8
EVICTED_SHARE: Final = 64
EXCHANGES_MAX: Final = 1024


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
    for a window and forgets what it saw, then for two, and at most for eight; what the cache holds goes on to be hit.
    Misses of keys that it does not hold are all that counts, so that a hit stays one look-up.
    """

    __slots__ = ("_gained", "_generation", "_misses", "_old_sights", "_pause", "_sights", "_skip", "_window")

    def __init__(self, limits: CacheLimits) -> None:
        self._generation = limits.entries // 2 + 1
        self._window = limits.window
        self._sights: set[int] = set()
        self._old_sights: set[int] = set()
        self._misses = 0
        self._gained = 0
        self._skip = 0
        self._pause = 1

    @property
    def bypassed(self) -> bool:
        """Return whether nothing is being admitted at present."""
        return self._skip > 0

    @property
    def sights(self) -> int:
        """Return how many first sights are kept."""
        return len(self._sights) + len(self._old_sights)

    def second_sight(self, key: Hashable) -> bool:
        """Count a miss and return whether the key should be admitted."""
        if self._skip:
            self._skip -= 1
            return False
        self._misses += 1
        if self._misses > self._window:
            useless = self._gained * 10 < self._window
            self._misses = 0
            self._gained = 0
            if not useless:
                self._pause = 1
            else:
                self._skip = self._pause * self._window
                self._pause = min(2 * self._pause, SKIPPED_WINDOWS_MAX)
                self._sights = set()
                self._old_sights = set()
                return False
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
    """Entries bounded in number and bytes; when full the oldest few go.

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

    @property
    def sights(self) -> int:
        """Return how many first sights are kept."""
        return self._admission.sights

    def _insert(self, key: K, entry: V, weight_bytes: int) -> bool:
        """Take in an entry and return True, or return False if it alone passes the bound. The key is not there yet."""
        limits = self._limits
        if weight_bytes > limits.cache_bytes or limits.entries < 1:
            return False
        if len(self.entries) >= limits.entries:
            self._evict()
        self._make_room(weight_bytes)
        self.entries[key] = entry
        self._weights[key] = weight_bytes
        self.used_bytes += weight_bytes
        self._admission.gained(1)
        return True

    def _make_room(self, wanted_bytes: int = 0) -> None:
        """Give up the oldest entries until so many bytes are free, or nothing is left."""
        while self.entries and self.used_bytes + wanted_bytes > self._limits.cache_bytes:
            self._evict()

    def _evict(self) -> None:
        # Many at once: to find the first key of a dict is to pass over the places of all keys deleted before it.
        oldest = list(islice(self.entries, len(self.entries) // EVICTED_SHARE + 1))
        for old_key in oldest:
            self._discard(old_key)
        self._admission.gained(-len(oldest))

    def _discard(self, key: K) -> V:
        self.used_bytes -= self._weights.pop(key)
        return self.entries.pop(key)

    def _clear(self) -> None:
        self.entries.clear()
        self._weights.clear()
        self.used_bytes = 0


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
X = TypeVar("X")


class PublishCache(BoundedCache[bytes, E], Generic[E, X]):
    """Entries by the bytes of basic.publish, for one user in one vhost.

    A hit is `entries.get(payload)` and a test of `entry.route.live`. What was missing or dead is resolved anew and
    offered. `exchanges` has what the exchange's name in such a payload, a short string,
    comes to by itself; whether that still holds it says itself. Rights belong to all of them, so a change of rights
    calls drop_all.
    """

    __slots__ = ("exchanges",)

    def __init__(self, limits: CacheLimits | None = None) -> None:
        super().__init__(limits)
        self.exchanges: dict[bytes, X] = {}

    def offer(self, payload: bytes, entry: E) -> bool:
        """Take in an entry whose route is live, on the second sight of its payload, and return whether it stayed.

        It takes the place of a dead one at once; a dead one is never taken in, nor is its payload a sight.
        """
        self.misses += 1
        known = payload in self.entries
        if known:
            self._discard(payload)
            self._admission.gained(-1)
        if not entry.route.live or not (known or self._admission.second_sight(payload)):
            return False
        # A destination counts twice: an entry keeps the route's tuple alive, and most keep a sorted copy of it.
        return self._insert(payload, entry, ENTRY_BYTES + len(payload) + 16 * len(entry.route.destinations))

    def know_exchange(self, name: bytes, exchange: X) -> None:
        """Keep what an exchange's name comes to; of very many all are given up before."""
        if len(self.exchanges) >= EXCHANGES_MAX:
            self.exchanges.clear()
        self.exchanges[name] = exchange

    def drop_all(self) -> None:
        """Forget everything."""
        self._clear()
        self.exchanges.clear()
