"""The destinations of one binding key, each with the number of bindings that name it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

Destinations = dict[Any, int]
"""Destinations in binding order, each with the number of bindings that name it: a destination gets one copy."""

FEW: Final = 8
"""Up to how many destinations, each bound once, are kept as a tuple."""


class Target:
    """Hold the destinations of one binding key in binding order.

    Matching reads `destinations`. A tuple is the smallest form and can be returned without a copy; a dict counts
    bindings and adds or removes one of many destinations in O(1).
    """

    __slots__ = ("_together", "destinations")

    def __init__(self) -> None:
        self.destinations: tuple[Any, ...] | Destinations = ()
        self._together: tuple[Any, ...] | None = None

    def __sizeof__(self) -> int:
        """Return the memory of the target and its containers, the destinations left out."""
        copied_bytes = 0 if self._together is None else self._together.__sizeof__()
        return object.__sizeof__(self) + self.destinations.__sizeof__() + copied_bytes

    def together(self) -> tuple[Any, ...]:
        """Return the destinations as one tuple, the same until they change.

        So all routes of a wide fan-out share it: the garbage collector would visit a copy in each of them.
        """
        known = self.destinations
        if isinstance(known, tuple):
            return known
        if self._together is None:
            self._together = tuple(known)
        return self._together

    def add(self, destination: Hashable) -> bool:
        """Count one more binding and return whether the destination is new."""
        self._together = None
        known = self.destinations
        if isinstance(known, tuple):
            if len(known) < FEW and destination not in known:
                self.destinations = (*known, destination)
                return True
            known = self.destinations = dict.fromkeys(known, 1)
        return count_up(known, destination)

    def remove(self, destination: Hashable) -> bool:
        """Remove one binding and return whether it was the destination's last. Raises: KeyError if it is missing."""
        self._together = None
        known = self.destinations
        if isinstance(known, tuple):
            if destination not in known:
                raise KeyError(destination)
            self.destinations = tuple([other for other in known if other != destination])
            return True
        gone = count_down(known, destination)
        if len(known) == FEW // 2:  # half of FEW, or adding and removing one binding would copy each time
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
