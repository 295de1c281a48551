"""The number of descriptors of the process, and how many of them clients may use.

The store needs some too: the broker ends when the store cannot open a file.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

__all__ = ["ENOUGH", "descriptors_for_clients", "descriptors_max"]

ENOUGH: Final = 1 << 17  # ten times the default of connections_max; nothing iterates over all of them
RESERVED_MIN: Final = 64
RESERVED_MAX: Final = 1024


def descriptors_max() -> int:
    """Return how many descriptors the process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def descriptors_for_clients() -> int:
    """Return the exclusive upper bound of a client's descriptor number; a quarter is reserved for the store."""
    soft = descriptors_max()
    if soft == sys.maxsize:
        return soft
    return soft - min(soft // 2, max(RESERVED_MIN, min(RESERVED_MAX, soft // 4)))
