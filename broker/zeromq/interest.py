"""The patterns that the bindings of an exchange ask for, and the interest that a bridge derives for its other side."""

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

AT_ONCE: Final = 2000  # bindings in one callback of the loop; each takes a few microseconds


class ExchangeWatch:
    """Watch the bindings of an exchange, identified by its name.

    Shapes: `wanted` is called with a topic pattern when the first binding asks for it, `unwanted` when the last such
        binding has ended, `renewed` when the exchange was declared.
    Cost: a few microseconds for each binding added or removed. Many at once take several iterations of the loop.
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

    # -- changes of the topology --------------------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """Report that the exchange was declared; it has no bindings yet."""
        if exchange.name == self._space.exchange:
            self._renewed()

    def deleted(self, exchange: Exchange) -> None:
        """Do nothing: `ended` is called for its bindings."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        self._note(source, [key], 1)

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        self._note(source, [key], -1)

    def ended(self, bundle: Bundle[Exchange]) -> None:
        if bundle.source.name == self._space.exchange:
            self._note(bundle.source, [key for key, _ in bundle.items()], -1)

    def _note(self, source: Exchange, keys: list[str], count: int) -> None:
        if source.name == self._space.exchange:
            kind = source.kind_of_patterns
            self._changes.append((conjunction(self._space, kind, key).pattern, count) for key in keys)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._process_changes)

    def _process_changes(self) -> None:
        left = AT_ONCE
        while self._changes and left:
            changes = list(islice(self._changes[0], left))
            left -= len(changes)
            if left:
                self._changes.popleft()
            for pattern, change in changes:
                self._count(pattern, change)
        self._scheduled = bool(self._changes)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._process_changes)

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
    """Derive an interest from each item, and ask for each derived interest once.

    Above `maximum` derived interests it asks for everything instead, until at most three quarters of `maximum` remain.
    Invariant: the items are a set: adding one again, or removing an unknown one, changes nothing.
    Cost: O(changes), but O(items) when it switches to everything or back.
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
        if item not in self._items:
            self._items.add(item)
            asked = self._derive(item)
            self._counts[asked] = self._counts.get(asked, 0) + 1
            self._changed[asked] = None

    def remove(self, item: Item) -> None:
        if item in self._items:
            self._items.discard(item)
            asked = self._derive(item)
            self._counts[asked] -= 1
            if not self._counts[asked]:
                del self._counts[asked]
            self._changed[asked] = None

    def clear(self) -> None:
        for item in list(self._items):
            self.remove(item)

    def lift_limit(self) -> None:
        """Ask for each derived interest from now on, whatever their number, because `everything` was refused."""
        self._maximum = sys.maxsize

    def restart(self) -> None:
        """Derive and ask for all interests again, because the other side has lost them. Cost: O(items)."""
        self.asked.clear()
        self._counts = dict(Counter(map(self._derive, self._items)))
        self._changed = dict.fromkeys(self._counts)
        self.is_everything = False

    def take(self) -> tuple[list[Asked], list[Asked]]:
        """Return the interests to ask for, and those to withdraw after that, so that no message is missed."""
        before = self.is_everything
        self.is_everything = len(self._counts) > (self._maximum * 3 // 4 if before else self._maximum)
        changed, self._changed = self._changed, {}
        if self.is_everything or before:
            wanted = {self._everything: None} if self.is_everything else dict.fromkeys(self._counts)
            added = [interest for interest in wanted if interest not in self.asked]
            removed = [interest for interest in self.asked if interest not in wanted]
        else:
            added = [interest for interest in changed if interest in self._counts and interest not in self.asked]
            removed = [interest for interest in changed if interest not in self._counts and interest in self.asked]
        self.asked.update(dict.fromkeys(added))
        for interest in removed:
            del self.asked[interest]
        return added, removed
