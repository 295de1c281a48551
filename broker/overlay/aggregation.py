"""Aggregation: how the patterns wanted in a space are merged before they are announced to a tree node.

A binding asks for a conjunction: the messages of a space that a topic pattern matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from broker.overlay.packets import Conjunction, Space
from broker.routing.cover_set import CoverSet, RootDiff
from broker.routing.pattern import HASH, STAR, BindingKeyError, Pattern, PatternLimits, parse_pattern, split_words

EVERYTHING: Final = Pattern(HASH, (HASH,), literal=False)
_LIMITS: Final = PatternLimits()


def conjunction(space: Space, kind: str, key: str) -> Conjunction:
    """Return the conjunction of a binding key at an exchange of a type.

    Every type but topic and direct filters by something else than the key; such a binding asks for everything. A topic
    exchange of another dialect than AMQP's is another type.
    """
    if kind == "topic":
        return Conjunction(space, pattern_of(key).text)
    if kind == "direct":
        words = split_words(key)
        return Conjunction(space, HASH if HASH in words or STAR in words else key)
    return Conjunction(space, HASH)


def pattern_of(text: str) -> Pattern:
    """Return the text of a conjunction as a pattern; what is not a pattern within the limits asks for everything."""
    try:
        return parse_pattern(text, _LIMITS)
    except BindingKeyError:
        return EVERYTHING


@lru_cache(maxsize=65_536)
def checksum(conjunction: Conjunction) -> int:
    """Return 64 bits that stand for a conjunction; those of a set are combined by exclusive or."""
    space = conjunction.space
    text = f"{space.vhost}\0{space.exchange}\0{conjunction.pattern}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Aggregation(Enum):
    """The way in which a broker merges subscriptions. Different settings work together: a merged set matches all that
    its parts match.

    With NONE a leaf broker announces every change as one, with IDENTICAL only the first and last of equal patterns, and
    with COVERING only the patterns that no other covers.
    """

    NONE = "none"
    IDENTICAL = "identical"
    COVERING = "covering"


class Announced:
    """The patterns of one space that are announced to one tree node: the roots, or everything if they are too many.

    Above `patterns_max` roots the full feed `#` is announced in their place, and the roots again when no more than half
    of the limit are left, so that a set at the limit does not switch with every change.

    Invariant: what is announced matches every key that a pattern of the set matches.
    Cost: that of the root set; a switch costs the roots.
    """

    __slots__ = ("_full_feed", "_patterns_max", "_roots", "_size")

    def __init__(self, aggregation: Aggregation, patterns_max: int) -> None:
        self._roots = CoverSet(covers=aggregation is Aggregation.COVERING)
        self._size = 0
        self._patterns_max = patterns_max
        self._full_feed = False

    @property
    def patterns(self) -> Iterable[str]:
        """Return the canonical texts that are announced."""
        return (EVERYTHING.text,) if self._full_feed else [pattern.text for pattern in self._roots.roots]

    def add(self, pattern: Pattern) -> dict[str, bool]:
        """Count a pattern once more, and return each announced text that was added (true) or removed (false)."""
        return self._change(self._roots.add(pattern))

    def remove(self, pattern: Pattern) -> dict[str, bool]:
        """Count a pattern once less, and return each announced text that was added (true) or removed (false)."""
        return self._change(self._roots.remove(pattern))

    def _change(self, roots: RootDiff) -> dict[str, bool]:
        before = self._full_feed
        self._size += len(roots.added) - len(roots.removed)
        self._full_feed = self._size > (self._patterns_max // 2 if before else self._patterns_max)
        if before and self._full_feed:
            return {}
        change = {pattern.text: False for pattern in roots.removed} | {pattern.text: True for pattern in roots.added}
        if before == self._full_feed:
            return change
        roots_now = {pattern.text for pattern in self._roots.roots}
        known = {EVERYTHING.text} if before else {*roots_now, *change} - {text for text, came in change.items() if came}
        wanted = {EVERYTHING.text} if self._full_feed else roots_now
        return dict.fromkeys(known - wanted, False) | dict.fromkeys(wanted - known, True)
