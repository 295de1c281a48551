"""What one side asks of the other, derived from what it is asked for itself."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["DerivedInterest"]

Item = TypeVar("Item", bound=Hashable)
Asked = TypeVar("Asked", bound=Hashable)


class DerivedInterest(Generic[Item, Asked]):
    """Counts items and asks for what each of them derives, once, as long as there is an item that derives it.

    With more than `maximum` to ask for it asks for everything instead, until three quarters of that are left.
    Invariant: an item counts once however often it is added, and removing one that is not there changes nothing.
    Cost: O(changes), except when it turns to everything and back: O(items).
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
        """Ask for each item from now on, however many they are: everything cannot be had."""
        self._maximum = sys.maxsize

    def restart(self) -> None:
        """Derive and ask for all again: the other side has forgotten what it was asked for. Cost: O(items)."""
        self.asked.clear()
        self._counts = dict(Counter(map(self._derive, self._items)))
        self._changed = dict.fromkeys(self._counts)
        self.is_everything = False

    def take(self) -> tuple[list[Asked], list[Asked]]:
        """Return what to ask for now, and what to withdraw after that, so that nothing is missed in between."""
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
