"""Who pays when a limit is reached that several users spend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

__all__ = ["payer"]

T = TypeVar("T", bound=Hashable)


def payer(holders: Iterable[T], newcomer: T) -> T:
    """Return the holder of most, the newcomer counted with one more; among equals it is the newcomer."""
    counts = Counter([*holders, newcomer])
    return max(counts, key=lambda one: (counts[one], one == newcomer))
