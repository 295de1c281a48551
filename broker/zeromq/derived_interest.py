"""The interest that a bridge passes on to one side, derived from the other side's interest."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Asked = TypeVar("Asked", bound=Hashable)


class DerivedInterest(Generic[Item, Asked]):
    """Derives an interest from each item, and asks for each derived interest once while any item derives it.

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
