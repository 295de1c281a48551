"""Who pays when a limit is reached that several users spend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

__all__ = ["payer"]

T = TypeVar("T", bound=Hashable)


def payer(holders: Iterable[T], newcomer: T) -> T:
    """Return who has most, with one more for the newcomer, who pays when there are several."""
    counts = Counter([*holders, newcomer])
    return max(counts, key=lambda one: (counts[one], one == newcomer))
