"""A short reference for topic matching, with which all engines are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import or_

from broker.routing.pattern import HASH, STAR


def matches(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Return whether the words of a pattern match those of a routing key, by dynamic programming over both."""
    reached = [True] + [False] * len(key)  # reached[i]: the words of the pattern so far match the first i of the key
    for wanted in pattern:
        if wanted == HASH:
            reached = list(accumulate(reached, or_))
        else:
            reached = [False] + [before and wanted in (STAR, word) for before, word in zip(reached, key, strict=False)]
    return reached[-1]
