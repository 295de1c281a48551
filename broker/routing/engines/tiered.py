"""The engine of a topic exchange that names none: patterns in tiers, those with several `#` apart from the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.engines.trie import Trie
from broker.routing.pattern import AMQP, HASH, STAR, Pattern, TopicDialect, words_match

T = TypeVar("T")

TAME_WORDS: Final = 8
TAME_WILDCARDS: Final = 4


PATTERNS_MOST: Final = 4096
PATTERNS_OF_WORD_MOST: Final = 32
"""Patterns with one word after the first `#`: a key with this word is compared with all of them at worst."""


class Middles(Generic[T]):
    """Compare a key with the patterns of which it has two words: the one after the first `#`, and the first other.

    In canonical form the word after the first `#` is not a wildcard. One pattern in a thousand with several `#` would
    otherwise cost every key as much as all others do. Of a million patterns, a key has the first of the two words of
    fifteen and both of fewer than two, most of which match.

    Shapes: `_patterns` leads from the word after the first `#` to the first other one, and from there to the patterns.
        A pattern that has no other has the same word twice.
    Invariant: `crowded` counts the patterns for which there was no room. While there are any, others must match.
    """

    def __init__(self) -> None:
        self._patterns: dict[str, dict[str, list[tuple[tuple[str, ...], T]]]] = {}
        self.size = 0
        self.crowded = 0

    def add(self, pattern: Pattern, target: T) -> None:
        """Keep a pattern if there is room."""
        middle, other = _two_words(pattern)
        beside = self._patterns.get(middle, {})
        if self.size >= PATTERNS_MOST or sum(map(len, beside.values())) >= PATTERNS_OF_WORD_MOST:
            self.crowded += 1
            return
        self.size += 1
        self._patterns[middle] = beside
        beside[other] = [*beside.get(other, ()), (pattern.words, target)]

    def remove(self, pattern: Pattern) -> None:
        """Remove a pattern that was added."""
        middle, other = _two_words(pattern)
        beside = self._patterns.get(middle, {})
        listed = beside.get(other, [])
        left = [known for known in listed if known[0] != pattern.words]
        if len(left) == len(listed):
            self.crowded -= 1
            return
        self.size -= 1
        if left:
            beside[other] = left
        else:
            del beside[other]
        if not beside:
            del self._patterns[middle]
        if not self.size:
            self._patterns = {}  # an emptied dict keeps its size

    def collect(self, words: list[str], found: list[T]) -> int:
        """Append the targets of the patterns that match the words of a key, each once; return the patterns compared."""
        visited = 0
        for place, middle in enumerate(words):
            beside = self._patterns.get(middle)
            if beside is not None and words.index(middle) == place:
                visited += _compare(beside, words, found)
        return visited


def _compare(beside: dict[str, list[tuple[tuple[str, ...], T]]], words: list[str], found: list[T]) -> int:
    """Append the targets of the patterns of a middle that match, each once, and return the patterns compared."""
    visited = 0
    for place, other in enumerate(words):
        listed = beside.get(other)
        if listed is not None and words.index(other) == place:
            visited += len(listed)
            for wanted, target in listed:
                if words_match(wanted, words):
                    found.append(target)
    return visited


def _two_words(pattern: Pattern) -> tuple[str, str]:
    """Return the word after the first `#`, and the next that is not a wildcard (the first word again if none is)."""
    words = pattern.words
    place = words.index(HASH) + 1
    for word in words[:place] + words[place + 1 :]:
        if word not in (HASH, STAR):
            return words[place], word
    return words[place], words[place]


def is_tame(pattern: Pattern) -> bool:
    """Return whether a trie finds such patterns in few steps, however many there are and whatever the key.

    Each star doubles the number of ways, and the words between two `#` may begin at each word of the key; both together
    are too many, each alone is within bounds. Patterns of wildcards alone are few and share one way.
    """
    words = pattern.words
    if len(words) > TAME_WORDS:
        return False
    hashes = words.count(HASH)
    stars = words.count(STAR)
    if hashes + stars == len(words):
        return True
    return hashes + stars <= TAME_WILDCARDS and (hashes < 2 or (hashes == 2 and not stars))


class Tiers(Generic[T]):
    """Map distinct canonical patterns to targets, and a key to the targets of the patterns that match it.

    A trie visits the nodes that a key reaches, which may be very many for a few thousand long patterns with many
    wildcards; a bitmap reads a row for each word, whose length grows with every pattern. So tame patterns are in the
    trie and all others in the bitmap.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.bitmap: ConstituentBitmap[T] = ConstituentBitmap(dialect)
        self.trie: Trie[T] = Trie(dialect)

    @property
    def visited(self) -> int:
        """The rows and nodes looked at."""
        return self.bitmap.visited + self.trie.visited

    @property
    def size(self) -> int:
        """The number of patterns."""
        return self.bitmap.size + self.trie.size

    def counts(self) -> Mapping[str, int]:
        """Return the sizes within the bitmap and the trie."""
        return {**self.bitmap.counts(), **self.trie.counts()}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target, or return the target that it already has. Cost: the words of the pattern."""
        return self.trie.add(pattern, target) if is_tame(pattern) else self.bitmap.add(pattern, target)

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of a pattern, None if the pattern is missing."""
        return self.trie.find(pattern) if is_tame(pattern) else self.bitmap.find(pattern)

    def remove(self, pattern: Pattern) -> T:
        """Remove one pattern and return its target. Cost: its words. Raises: KeyError if it is missing."""
        return self.trie.remove(pattern) if is_tame(pattern) else self.bitmap.remove(pattern)

    def collect(self, key: str, words: list[str], found: list[T]) -> None:
        """Append the targets of the patterns that match a key of these words, each once."""
        if self.trie.size:
            self.trie.collect(words, found)
        if self.bitmap.size:
            self.bitmap.collect(key, words, found)


SHORT_WORDS: Final = 8
"""Words of the longest keys that are compared with patterns one by one."""


class Tiered(Generic[T]):
    """Map distinct canonical patterns to targets, and a key to the targets of the patterns that match it.

    Patterns with several `#` have tiers of their own. While they are few, a short key is compared with some of them
    instead, so that one pattern like `#.a.#` does not cost every key as much as ten thousand others.

    Invariant: `visited` includes the counts of the tiers, and the patterns compared. There are tiers for several `#`
        exactly while there is such a pattern.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self._dialect = dialect
        self._words = dialect.words
        self._plain: Tiers[T] = Tiers(dialect)
        self._several: Tiers[T] | None = None
        self._middles: Middles[T] = Middles()
        self._visited_before = 0  # patterns compared, and what tiers counted that are gone

    @property
    def visited(self) -> int:
        """The number of rows, nodes and patterns visited."""
        several = self._several
        return self._visited_before + self._plain.visited + (0 if several is None else several.visited)

    @property
    def size(self) -> int:
        """The number of patterns."""
        return self._plain.size + (0 if self._several is None else self._several.size)

    def counts(self) -> Mapping[str, int]:
        """Return the sizes within all tiers, and how many patterns keys are compared with."""
        counts = dict(self._plain.counts())
        if self._several is not None:
            for name, count in self._several.counts().items():
                counts[name] += count
        return {**counts, "compared": self._middles.size}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target, or return the target that it already has. Cost: see Tiers."""
        if pattern.words.count(HASH) < 2:
            return self._plain.add(pattern, target)
        if self._several is None:
            self._several = Tiers(self._dialect)
        known = self._several.add(pattern, target)
        if known is None:
            self._middles.add(pattern, target)
        return known

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of a pattern, None if the pattern is missing."""
        if pattern.words.count(HASH) < 2:
            return self._plain.find(pattern)
        return None if self._several is None else self._several.find(pattern)

    def remove(self, pattern: Pattern) -> T:
        """Remove one pattern and return its target. Cost: its words. Raises: KeyError if it is missing."""
        if pattern.words.count(HASH) < 2:
            return self._plain.remove(pattern)
        several = self._several
        if several is None:
            raise KeyError(pattern.text)
        target = several.remove(pattern)
        self._middles.remove(pattern)
        if not several.size:
            self._visited_before += several.visited
            self._several = None
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match, each once."""
        found: list[T] = []
        words = self._words(key)
        self._plain.collect(key, words, found)
        several = self._several
        if several is None:
            return found
        if self._middles.crowded or len(words) > SHORT_WORDS:
            several.collect(key, words, found)
        else:
            self._visited_before += self._middles.collect(words, found)
        return found
