"""The broker's own objects in this process, and what they take."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any

__all__ = ["own_bytes"]


def own_bytes(new: list[Any], known: set[int]) -> Counter[str]:
    """Return the bytes by type of the broker's objects among `new`, with the values that they alone hold."""
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
    """Return whether an object is one of the broker's, or a plain value."""
    kind = type(held)
    return kind.__module__ == "builtins" or kind.__module__.startswith("broker.")
