"""The interest of the bindings of one exchange, and the interest that a bridge derives from one side for the other."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.overlay.aggregation import conjunction
from broker.overlay.packets import Space
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

AT_ONCE: Final = 2000  # bindings in one callback of the loop, of some microseconds each


class ExchangeWatch:
    """Watch an exchange of a vhost by its name.

    Shapes: `wanted` gets a topic pattern when the first binding asks for it, `unwanted` when the last one has ended.
        `renewed` is called when the exchange was declared.
    Cost: some microseconds for each binding added or removed; those of a deleted queue are handled over several turns.
    """

    def __init__(
        self,
        vhost: Vhost,
        exchange: str,
        *,
        wanted: Callable[[str], None] = lambda _pattern: None,
        unwanted: Callable[[str], None] = lambda _pattern: None,
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self._space = Space(vhost.name, exchange)
        self._wanted = wanted
        self._unwanted = unwanted
        self._renewed = renewed
        self._counts: dict[str, int] = {}
        self._changes: deque[Iterator[tuple[str, int]]] = deque()
        self._scheduled = False
        vhost.bindings.live.watches.append(self)
        found = vhost.exchanges.get(exchange)
        for bundle in [] if found is None else found.bundles.values():
            self._note(bundle.source, [key for key, _ in bundle.items()], 1)

    # -- what the topology tells --------------------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """Report the new exchange, which has no bindings yet."""
        if exchange.name == self._space.exchange:
            self._renewed()

    def deleted(self, exchange: Exchange) -> None:
        """Do nothing: `ended` told of its bindings."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Count a new binding."""
        self._note(source, [key], 1)

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Count a binding that was removed."""
        self._note(source, [key], -1)

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Count bindings that ended together."""
        if bundle.source.name == self._space.exchange:
            self._note(bundle.source, [key for key, _ in bundle.items()], -1)

    def _note(self, source: Exchange, keys: list[str], count: int) -> None:
        if source.name == self._space.exchange:
            kind = source.kind_of_patterns
            self._changes.append((conjunction(self._space, kind, key).pattern, count) for key in keys)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        """Count the next changes."""
        left = AT_ONCE
        while self._changes and left:
            taken = list(islice(self._changes[0], left))
            left -= len(taken)
            if left:
                self._changes.popleft()
            for pattern, change in taken:
                self._count(pattern, change)
        self._scheduled = bool(self._changes)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._take)

    def _count(self, pattern: str, change: int) -> None:
        count = self._counts.get(pattern, 0) + change
        if count:
            self._counts[pattern] = count
        else:
            del self._counts[pattern]
        if change > 0 and count == 1:
            self._wanted(pattern)
        elif not count:
            self._unwanted(pattern)


Item = TypeVar("Item", bound=Hashable)
Asked = TypeVar("Asked", bound=Hashable)


class DerivedInterest(Generic[Item, Asked]):
    """Derive an interest from each item, and ask for each derived interest once while any item derives it.

    Above `maximum` derived interests it asks for everything instead, until their number falls to three quarters of it.
    Invariant: an item counts once, no matter how often it is added; removing an unknown item changes nothing.
    Cost: O(changes), except when it switches to everything and back: O(items).
    """

    def __init__(self, derive: Callable[[Item], Asked], everything: Asked, maximum: int) -> None:
        self._derive = derive
        self._everything = everything
        self._maximum = maximum
        self._items: set[Item] = set()
        self._counts: dict[Asked, int] = {}
        self._changed: dict[Asked, None] = {}
        self.asked: dict[Asked, None] = {}
        self.is_everything = False

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Add an item."""
        if item not in self._items:
            self._items.add(item)
            asked = self._derive(item)
            self._counts[asked] = self._counts.get(asked, 0) + 1
            self._changed[asked] = None

    def remove(self, item: Item) -> None:
        """Remove an item."""
        if item in self._items:
            self._items.discard(item)
            asked = self._derive(item)
            self._counts[asked] -= 1
            if not self._counts[asked]:
                del self._counts[asked]
            self._changed[asked] = None

    def clear(self) -> None:
        """Remove all items."""
        for item in list(self._items):
            self.remove(item)

    def lift_limit(self) -> None:
        """Ask for each derived interest from now on, however many there are: the other side refuses everything."""
        self._maximum = sys.maxsize

    def restart(self) -> None:
        """Derive and ask for all interests again, because the other side has lost them. Cost: O(items)."""
        self.asked.clear()
        self._counts = dict(Counter(map(self._derive, self._items)))
        self._changed = dict.fromkeys(self._counts)
        self.is_everything = False

    def take(self) -> tuple[list[Asked], list[Asked]]:
        """Return the interests to ask for now, and those to withdraw afterwards, so that no message is missed."""
        before = self.is_everything
        self.is_everything = len(self._counts) > (self._maximum * 3 // 4 if before else self._maximum)
        changed, self._changed = self._changed, {}
        if self.is_everything or before:
            wanted = {self._everything: None} if self.is_everything else dict.fromkeys(self._counts)
            added = [one for one in wanted if one not in self.asked]
            removed = [one for one in self.asked if one not in wanted]
        else:
            added = [one for one in changed if one in self._counts and one not in self.asked]
            removed = [one for one in changed if one not in self._counts and one in self.asked]
        self.asked.update(dict.fromkeys(added))
        for one in removed:
            del self.asked[one]
        return added, removed
