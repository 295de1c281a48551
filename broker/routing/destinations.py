"""The destinations of one binding key, counted."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

Destinations = dict[Any, int]
"""Destinations in binding order, each with the number of bindings that name it: a destination gets one copy."""


def count_up(destinations: Destinations, destination: Hashable) -> bool:
    """Count one more binding and return whether the destination is new."""
    count = destinations.get(destination, 0)
    destinations[destination] = count + 1
    return count == 0


def count_down(destinations: Destinations, destination: Hashable) -> bool:
    """Count one binding less and return whether the destination is gone. Raises: KeyError if it was not there."""
    count = destinations[destination]
    if count > 1:
        destinations[destination] = count - 1
        return False
    del destinations[destination]
    return True
