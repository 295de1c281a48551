"""The destinations of one binding key, each with the number of bindings that name it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

Destinations = dict[Any, int]
"""Destinations in binding order, each with the number of bindings that name it."""

TUPLE_MAX: Final = 8
"""The most destinations that are stored as a tuple."""


class Target:
    """The destinations of one binding key, in binding order.

    A tuple is the smallest form and can be returned without a copy. A dict counts bindings, and adds or removes one of
    many destinations in O(1).
    """

    __slots__ = ("_copied", "destinations")

    def __init__(self) -> None:
        self.destinations: tuple[Any, ...] | Destinations = ()
        self._copied: tuple[Any, ...] | None = None

    def __sizeof__(self) -> int:
        """Return the memory of the target and its containers, without the destinations."""
        copied_bytes = 0 if self._copied is None else self._copied.__sizeof__()
        return object.__sizeof__(self) + self.destinations.__sizeof__() + copied_bytes

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the destinations as a tuple, which is the same object until a binding is added or removed.

        All routes of a wide fan-out share it, because the garbage collector would visit each copy.
        """
        known = self.destinations
        if isinstance(known, tuple):
            return known
        if self._copied is None:
            self._copied = tuple(known)
        return self._copied

    def add(self, destination: Hashable) -> bool:
        """Count one more binding and return whether the destination is new."""
        self._copied = None
        known = self.destinations
        if isinstance(known, tuple):
            if len(known) < TUPLE_MAX and destination not in known:
                self.destinations = (*known, destination)
                return True
            known = self.destinations = dict.fromkeys(known, 1)
        return count_up(known, destination)

    def remove(self, destination: Hashable) -> bool:
        """Remove one binding and return whether it was the destination's last. Raises: KeyError if it is missing."""
        self._copied = None
        known = self.destinations
        if isinstance(known, tuple):
            if destination not in known:
                raise KeyError(destination)
            self.destinations = tuple([other for other in known if other != destination])
            return True
        gone = count_down(known, destination)
        if len(known) == TUPLE_MAX // 2:  # at TUPLE_MAX, adding and removing one binding would copy each time
            once = all(count == 1 for count in known.values())
            self.destinations = tuple(known) if once else dict(known)
        return gone


def count_up(destinations: Destinations, destination: Hashable) -> bool:
    """Count one more binding and return whether the destination is new."""
    count = destinations.get(destination, 0)
    destinations[destination] = count + 1
    return count == 0


def count_down(destinations: Destinations, destination: Hashable) -> bool:
    """Remove one binding and return whether it was the destination's last. Raises: KeyError if it is missing."""
    count = destinations[destination]
    if count > 1:
        destinations[destination] = count - 1
        return False
    del destinations[destination]
    return True
