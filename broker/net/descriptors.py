"""How many of the process's descriptors clients may have: the store needs some too, and ends the broker without."""

from __future__ import annotations

import resource
import sys
from typing import Final

__all__ = ["descriptors_for_clients"]

RESERVED_MIN: Final = 64
RESERVED_MAX: Final = 1024


def descriptors_for_clients() -> int:
    """Returns below which number a client's descriptor has to be; a quarter is kept for the store."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(soft // 2, max(RESERVED_MIN, min(RESERVED_MAX, soft // 4)))
