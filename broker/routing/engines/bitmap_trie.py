"""The bitmap trie: what tells patterns apart best is tested first, and the few that are left are bitmaps."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.bitmap_bucket import BEYOND, Solo
from broker.routing.engines.floating import FloatingPatterns
from broker.routing.engines.pattern_tree import PatternTree
from broker.routing.pattern import HASH, Pattern

T = TypeVar("T")


class BitmapTrie(Generic[T]):
    """Maps distinct canonical patterns to targets, and a key to the targets of the patterns that match it."""

    __slots__ = ("_count", "_floating", "_longest", "_plain", "_split", "_words")

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self._words = dialect.words
        self._plain: PatternTree[T] = PatternTree()
        self._split: PatternTree[T] = PatternTree()
        self._floating: FloatingPatterns[T] = FloatingPatterns(dialect)
        self._longest = 0
        self._count = 0

    @property
    def visited(self) -> int:
        return self._plain.visited + self._split.visited + self._floating.visited

    @visited.setter
    def visited(self, value: int) -> None:
        self._plain.visited = value
        self._split.visited = 0
        self._floating.visited = 0

    def __len__(self) -> int:
        return self._count

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of patterns by kind, forks, buckets and rows."""
        counts = [a + b + c for a, b, c in zip(self._plain.counts(), self._split.counts(), self._floating.counts())]
        return {
            "plain": self._plain.size,
            "split": self._split.size,
            "floating": self._floating.size,
            "forks": counts[0],
            "buckets": counts[1],
            "rows": counts[2],
        }

    def add(self, pattern: Pattern, target: T) -> None:
        """Store the target of one pattern that is not there yet."""
        words = tuple([intern(word) for word in pattern.words])
        solo = Solo(words, target)
        hashes = words.count(HASH)
        if hashes > 1:
            self._floating.add(solo)
        elif solo.tail:
            self._split.add(solo)
        else:
            self._plain.add(solo)
        if len(words) > self._longest:
            self._longest = len(words)
        self._count += 1

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        solo: Solo[T] = Solo(pattern.words, None)
        if pattern.words.count(HASH) > 1:
            return self._floating.find(solo)
        return (self._split if solo.tail else self._plain).find(solo)

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is not there."""
        solo: Solo[T] = Solo(pattern.words, None)
        if pattern.words.count(HASH) > 1:
            target = self._floating.remove(solo)
        else:
            target = (self._split if solo.tail else self._plain).remove(solo)
        if target is None:
            raise KeyError(pattern.text)
        self._count -= 1
        if not self._count:
            self._longest = 0
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of all patterns that match a routing key."""
        words = self._words(key)
        length = len(words)
        found: list[T] = []
        padded = words + [BEYOND] * (self._longest - length) if length < self._longest else words
        if self._plain.size:
            self._plain.gather(padded, length, found)
        if self._split.size or self._floating.size:
            padded = padded + words
            if self._split.size:
                self._split.gather(padded, length, found)
            if self._floating.size:
                self._floating.gather(words, padded, length, found)
        return found
