"""Fair sharing of a limit: when it is reached, the user with the most gives up one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

__all__ = ["payer"]

T = TypeVar("T", bound=Hashable)


def payer(holders: Iterable[T], newcomer: T) -> T:
    """Return the user who holds the most. The newcomer counts with one more, and gives way to equals."""
    counts = Counter([*holders, newcomer])
    return max(counts, key=lambda one: (counts[one], one == newcomer))
