"""The bitmap while it is the quickest, and the trie behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.engines.trie import Trie
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")

MOVED_PER_ADD: Final = 2
"""Patterns that leave the bitmap with each one added beyond that, so that no single one pays for all."""
TAME_WORDS: Final = 8
TAME_WILDCARDS: Final = 4


def is_tame(pattern: Pattern) -> bool:
    """Return whether a trie finds such patterns in few steps, however many there are and whatever the key.

    Each star doubles the ways through, and what stands between two `#` may begin at each word of the key; both at once
    are too much, and one alone is within bounds. Patterns of wildcards alone are few and share one way.
    """
    words = pattern.words
    if len(words) > TAME_WORDS:
        return False
    hashes = words.count(HASH)
    stars = words.count(STAR)
    if hashes + stars == len(words):
        return True
    return hashes + stars <= TAME_WILDCARDS and (hashes < 2 or (hashes == 2 and not stars))


BITMAP_MOST: Final = 16_384 if hasattr(is_tame, "__code__") else 4096  # which a compiled function has not
"""Tame patterns in the bitmap. To AND rows costs the same in both forms, to walk a trie half as much compiled;
docs/topic-index.md has the figures.
"""


class Tiers(Generic[T]):
    """Maps distinct canonical patterns to targets, and a key to the targets of the patterns that match it.

    A bitmap looks at a row for each word, in whose length every pattern has a share; a trie at the nodes that a key
    reaches, which a few thousand long patterns of many wildcards can make very many. So up to BITMAP_MOST patterns are
    in a bitmap, and of more only those that are not tame.

    Invariant: a tame pattern is in the bitmap exactly while it is in `_movable`.
    """

    __slots__ = ("_movable", "_parse", "_visited_before", "bitmap", "trie")

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.bitmap: ConstituentBitmap[T] = ConstituentBitmap(dialect)
        self.trie: Trie[T] = Trie(dialect)
        self._parse = dialect.parse
        self._visited_before = 0  # beside what the two count, as `visited` was set
        self._movable: dict[str, None] = {}  # texts: patterns of their own would double what a bitmap takes

    @property
    def visited(self) -> int:
        """Return the rows and nodes looked at."""
        return self._visited_before + self.bitmap.visited + self.trie.visited

    @visited.setter
    def visited(self, count: int) -> None:
        self._visited_before = count - self.bitmap.visited - self.trie.visited

    def __len__(self) -> int:
        return len(self.bitmap) + len(self.trie)

    def counts(self) -> Mapping[str, int]:
        """Return the sizes within the bitmap and the trie, and how many patterns may still change over."""
        return {**self.bitmap.counts(), **self.trie.counts(), "movable": len(self._movable)}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already.

        Cost: the words of the pattern, and those of MOVED_PER_ADD others.
        """
        movable = self._movable
        if not is_tame(pattern) or pattern.text in movable:
            return self.bitmap.add(pattern, target)
        if len(movable) < BITMAP_MOST and not self.trie.size:
            self.bitmap.add(pattern, target)
            movable[pattern.text] = None
            return None
        known = self.trie.add(pattern, target)
        if known is None:
            self._move()
        return known

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        if is_tame(pattern) and pattern.text not in self._movable:
            return self.trie.find(pattern)
        return self.bitmap.find(pattern)

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Cost: its words. Raises: KeyError if it is not there."""
        if not is_tame(pattern):
            return self.bitmap.remove(pattern)
        if pattern.text not in self._movable:
            return self.trie.remove(pattern)
        target = self.bitmap.remove(pattern)
        del self._movable[pattern.text]
        if not self._movable:
            self._movable = {}  # an emptied dict keeps its size
        return target

    def collect(self, key: str, words: list[str], found: list[T]) -> None:
        """Append the targets of the patterns that match a key of these words, each once."""
        if len(self.trie):
            self.trie.collect(words, found)
        if len(self.bitmap):
            self.bitmap.collect(key, words, found)

    def _move(self) -> None:
        for _ in range(MOVED_PER_ADD):
            if not self._movable:
                return
            pattern = self._parse(self._movable.popitem()[0])
            self.trie.add(pattern, self.bitmap.remove(pattern))
        if not self._movable:
            self._movable = {}
