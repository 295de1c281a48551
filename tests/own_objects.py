"""The memory of the broker's objects in this process."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any

__all__ = ["own_bytes"]


def own_bytes(new: list[Any], known: set[int]) -> Counter[str]:
    """Return the bytes by type of the broker's objects in `new` and their referents, except those in `known`."""
    sizes: Counter[str] = Counter()
    counted = set(known)
    for one in new:
        if type(one).__module__.startswith("broker."):
            for held in (one, *gc.get_referents(one)):
                if id(held) not in counted and not isinstance(held, type) and of_the_broker(held):
                    counted.add(id(held))
                    sizes[type(held).__qualname__] += sys.getsizeof(held)
    return sizes


def of_the_broker(held: object) -> bool:
    """Return whether an object is of a class of the broker or a builtin type."""
    kind = type(held)
    return kind.__module__ == "builtins" or kind.__module__.startswith("broker.")
