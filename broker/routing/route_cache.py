"""The route cache of an exchange: routing key -> route. A changed pattern ends only the routes of matching keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from broker.routing.cache import ENTRY_BYTES, BoundedCache, CacheLimits
from broker.routing.key_trie import KeyTrie
from broker.routing.route import Route

SCANNED_BYTES_MAX: Final = 4 << 20
"""The most bytes of destinations that a search of all cached routes may scan, in a few milliseconds."""

SCANS_PER_VISIT: Final = 8
"""The number of routes whose scan costs as much as one visit to the trie."""

INDEXED_AT_ONCE: Final = 2048
"""The most cached keys that a new trie indexes; if there are more, all routes are dropped instead."""

VISITS_MAX: Final = 8192
"""The most visits to the trie for a changed pattern, a few milliseconds; beyond that, all routes are dropped."""

VISITS_PER_ADMISSION: Final = 64
"""The visits to the trie that each admitted key pays for; they cost about as much as resolving the key again."""

NOWHERE: Final = Route(())
"""A shared route that is never live, for uncached keys without destinations and for keys whose route has ended."""


class RouteCache(BoundedCache[str, Route]):
    """The routes of one exchange by routing key.

    A hit is `entries.get(key)` and a test of `live`. When a changed pattern ends a route, its key stays, and the next
    route of the key is admitted at once. A trie of the keys finds those that a pattern matches. It is built only when a
    pattern changes while routes are cached, because most exchanges are bound before clients publish to them.

    Cost: `end_matching` and `drop_all` are amortised over the admissions since the last `drop_all`.
    """

    __slots__ = ("_credit", "_trie")

    def __init__(self, limits: CacheLimits | None = None) -> None:
        super().__init__(limits)
        self._credit = 0
        self._trie: KeyTrie | None = None

    @property
    def visited(self) -> int:
        """The number of visits to the trie caused by changed patterns."""
        return 0 if self._trie is None else self._trie.visited

    def offer(self, key: str, destinations: tuple[Any, ...]) -> Route:
        """Return a route for a key without a live route. It is live if it was cached; otherwise use it only once."""
        if key not in self.entries and not self._is_second_miss(key):
            return Route(destinations) if destinations else NOWHERE
        route = Route(destinations, live=True)
        weight_bytes = ENTRY_BYTES + len(key) + 8 * len(destinations)
        if key in self.entries:
            more_bytes = weight_bytes - self._weights[key]
            if self.used_bytes + more_bytes <= self._limits.cache_bytes:
                self.entries[key] = route
                self._weights[key] = weight_bytes
                self.used_bytes += more_bytes
                return route
            self._discard(key)
        if not self._insert(key, route, weight_bytes):
            return Route(destinations)
        self._credit += VISITS_PER_ADMISSION
        if self._trie is not None:
            self._index(key, self._trie)  # this may evict the route, which then has no destinations
        return route if route.live else Route(destinations)

    def drop(self, key: str) -> None:
        """End the route of one key and forget the key, which is often the name of a deleted queue."""
        if key in self.entries:
            self._discard(key)

    def end_matching(self, pattern: Sequence[str], words: Callable[[str], list[str]]) -> None:
        """End the routes of the keys that the words of a pattern match.

        Shapes: `words` splits a routing key into words, as the pattern's dialect does.
        Cost: the visited nodes and keys of the trie. If the search would cost too much, every route ends instead.
        """
        if not self.entries:
            return
        trie = self._trie
        if trie is None:
            trie = self._trie = KeyTrie(words)
            if len(self.entries) > INDEXED_AT_ONCE:
                self.drop_all()
                return
            for key in self.entries:
                trie.add(key)
            self.used_bytes += trie.used_bytes
            self._make_room()
        visited = trie.visited
        touched = trie.find(pattern, min(VISITS_MAX, self._credit))
        self._credit -= trie.visited - visited
        if touched is None:
            self.drop_all()
        elif touched:
            self._end(touched)
            self._gained -= 1

    def drop_routes_to(self, destination: Hashable) -> None:
        """End the routes to a destination, or every route if the search would cost too much.

        Cost: at most all routes and their destinations.
        """
        entries = self.entries
        indexed_bytes = 0 if self._trie is None else self._trie.used_bytes
        self._credit -= len(entries) // SCANS_PER_VISIT
        if self._credit < 0 or self.used_bytes - indexed_bytes > len(entries) * ENTRY_BYTES + SCANNED_BYTES_MAX:
            self.drop_all()
            return
        self._end([key for key, route in entries.items() if destination in route.destinations])

    def drop_all(self) -> None:
        """End every route."""
        self._credit = 0
        if not self.entries:
            return
        routes = list(self.entries.values())
        self._clear()
        if self._trie is not None:
            self._trie.clear()
        for route in routes:
            route.end()
        self._gained -= 1

    def _end(self, keys: Sequence[str]) -> None:
        """End the routes of these keys, or every route if the keys are very many."""
        if len(keys) > VISITS_MAX:
            self.drop_all()
            return
        entries, weights = self.entries, self._weights
        for key in keys:
            route = entries[key]
            if route.live:
                freed_bytes = 8 * len(route.destinations)
                route.end()
                entries[key] = NOWHERE
                weights[key] -= freed_bytes
                self.used_bytes -= freed_bytes

    def _index(self, key: str, trie: KeyTrie) -> None:
        before_bytes = trie.used_bytes
        trie.add(key)
        self.used_bytes += trie.used_bytes - before_bytes
        self._make_room()

    def _discard(self, key: str) -> Route:
        route = super()._discard(key)
        route.end()
        trie = self._trie
        if trie is not None:
            before_bytes = trie.used_bytes
            trie.remove(key)
            self.used_bytes += trie.used_bytes - before_bytes
        return route
