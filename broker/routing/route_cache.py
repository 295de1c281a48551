"""The route cache of an exchange: routing key -> route, patched by the pattern that changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from broker.routing.cache import ENTRY_BYTES, BoundedCache, CacheLimits
from broker.routing.key_trie import KeyTrie
from broker.routing.route import Route

GLANCED_BYTES: Final = 4 << 20
"""The number of destinations of all cached routes up to which they are searched, which takes some milliseconds."""

GLANCES_PER_VISIT: Final = 8
"""How many routes are searched at the cost of one visit to the trie."""

INDEXED_AT_ONCE: Final = 2048
"""The most cached keys that are put into a trie when the first pattern changes; if there are more, all are dropped."""

VISITS_MAX: Final = 8192
"""How many visits to the trie a changed pattern may cost before all routes are dropped: a few milliseconds."""

VISITS_PER_ADMISSION: Final = 64
"""How many visits to the trie each admitted key pays for: as many as resolving the key again costs."""

NOWHERE: Final = Route(())
"""The shared route without destinations, for keys that lead nowhere and are not cached."""


class RouteCache(BoundedCache[str, Route]):
    """Routes of one exchange by routing key.

    A hit is `entries.get(key)` and a test of `live`. A key whose route a pattern ended stays, and the next route for it
    is admitted at once. The trie is built when a pattern changes while routes are cached, because most exchanges
    are bound before they are published to.

    Cost: end_matching and drop_all are amortised over the admissions since the last drop_all.
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
        """Return the route of a key that is not cached or has ended: live if it was admitted, else for one use."""
        if key not in self.entries and not self._second_sight(key):
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
            route.end()
            return route
        self._credit += VISITS_PER_ADMISSION
        if self._trie is not None:
            self._index(key, self._trie)
        return route

    def drop(self, key: str) -> None:
        """End the route of one key and forget the key, which is often a queue's name and disappears with the queue."""
        if key in self.entries:
            self._discard(key)

    def end_matching(self, pattern: Sequence[str], words: Callable[[str], list[str]]) -> None:
        """End the routes of the keys that the words of a pattern match.

        Shapes: `words` returns the words of a routing key, as the pattern's dialect has them.
        Cost: the keys that the pattern matches, at most VISITS_MAX visits. If the cache is no longer worth this, as
            with very many changes of patterns, every route ends.
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

    def drop_those_to(self, destination: Hashable) -> None:
        """End the routes that lead to a destination, or every route if they have very many destinations.

        Cost: O(destinations of all routes) while the admissions pay for it, else O(routes).
        """
        entries = self.entries
        indexed_bytes = 0 if self._trie is None else self._trie.used_bytes
        self._credit -= len(entries) // GLANCES_PER_VISIT
        if self._credit < 0 or self.used_bytes - indexed_bytes > len(entries) * ENTRY_BYTES + GLANCED_BYTES:
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
        """End the routes of some keys and keep the keys, so that they are admitted at once when they are used again.

        If there are very many, drop all, which is quicker.
        """
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
