"""The default engine of topic exchanges: a trie for simple patterns, a bitmap for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.engines.trie import Trie
from broker.routing.pattern import AMQP, HASH, STAR, Pattern, TopicDialect, words_match

T = TypeVar("T")

SIMPLE_WORDS_MAX: Final = 8
SIMPLE_WILDCARDS_MAX: Final = 4

PATTERNS_MAX: Final = 4096
PATTERNS_PER_WORD_MAX: Final = 32
"""The most patterns with the same word after the first `#`: a key with this word may be compared with all of them."""


class ComparedPatterns(Generic[T]):
    """Patterns with several `#`, compared one by one with the keys that contain two of their words.

    The two words are the one after the first `#`, which in canonical form is literal, and the first other literal word.

    Shapes: `_patterns` maps the word after the first `#` to a map from the other word to the patterns. A pattern
        without another literal word has the same word twice.
    Invariant: `left_out` counts the patterns for which there was no room. While it is not 0, `collect` is incomplete.
    """

    def __init__(self) -> None:
        self._patterns: dict[str, dict[str, list[tuple[tuple[str, ...], T]]]] = {}
        self.size = 0
        self.left_out = 0

    def add(self, pattern: Pattern, target: T) -> None:
        """Add a pattern, or count it if there is no room."""
        middle, other = _two_words(pattern)
        by_other = self._patterns.get(middle, {})
        if self.size >= PATTERNS_MAX or sum(map(len, by_other.values())) >= PATTERNS_PER_WORD_MAX:
            self.left_out += 1
            return
        self.size += 1
        self._patterns[middle] = by_other
        by_other[other] = [*by_other.get(other, ()), (pattern.words, target)]

    def remove(self, pattern: Pattern) -> None:
        middle, other = _two_words(pattern)
        by_other = self._patterns.get(middle, {})
        patterns = by_other.get(other, [])
        left = [known for known in patterns if known[0] != pattern.words]
        if len(left) == len(patterns):
            self.left_out -= 1
            return
        self.size -= 1
        if left:
            by_other[other] = left
        else:
            del by_other[other]
        if not by_other:
            del self._patterns[middle]
        if not self.size:
            self._patterns = {}  # an emptied dict keeps its memory

    def collect(self, words: list[str], found: list[T]) -> int:
        """Append the targets of the patterns that match, each once, and return the number of patterns compared."""
        visited = 0
        for place, middle in enumerate(words):
            by_other = self._patterns.get(middle)
            if by_other is not None and words.index(middle) == place:
                visited += _compare(by_other, words, found)
        return visited


def _compare(by_other: dict[str, list[tuple[tuple[str, ...], T]]], words: list[str], found: list[T]) -> int:
    """Append the targets of the given patterns that match, and return the number of patterns compared."""
    visited = 0
    for place, other in enumerate(words):
        patterns = by_other.get(other)
        if patterns is not None and words.index(other) == place:
            visited += len(patterns)
            for wanted, target in patterns:
                if words_match(wanted, words):
                    found.append(target)
    return visited


def _two_words(pattern: Pattern) -> tuple[str, str]:
    """Return the word after the first `#` and the first other literal word; the former twice if there is no other."""
    words = pattern.words
    place = words.index(HASH) + 1
    for word in words[:place] + words[place + 1 :]:
        if word not in (HASH, STAR):
            return words[place], word
    return words[place], words[place]


def is_simple(pattern: Pattern) -> bool:
    """Return whether a trie matches patterns like this one in few steps, however many there are and whatever the key.

    Each star doubles the number of paths through the trie, and the words between two `#` may begin at each word of the
    key. Either is acceptable alone, but not both together. Patterns of wildcards alone are few and share a path.
    """
    words = pattern.words
    if len(words) > SIMPLE_WORDS_MAX:
        return False
    hashes = words.count(HASH)
    stars = words.count(STAR)
    if hashes + stars == len(words):
        return True
    return hashes + stars <= SIMPLE_WILDCARDS_MAX and (hashes < 2 or (hashes == 2 and not stars))


class Tier(Generic[T]):
    """A trie with the simple patterns and a bitmap with all others.

    A trie visits the nodes that a key reaches, which may be very many for a few thousand long patterns with many
    wildcards. A bitmap reads a row for each word, and rows grow with every pattern.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.bitmap: ConstituentBitmap[T] = ConstituentBitmap(dialect)
        self.trie: Trie[T] = Trie(dialect)

    @property
    def visited(self) -> int:
        return self.bitmap.visited + self.trie.visited

    @property
    def size(self) -> int:
        return self.bitmap.size + self.trie.size

    def counts(self) -> Mapping[str, int]:
        return {**self.bitmap.counts(), **self.trie.counts()}

    def add(self, pattern: Pattern, target: T) -> T | None:
        return self.trie.add(pattern, target) if is_simple(pattern) else self.bitmap.add(pattern, target)

    def find(self, pattern: Pattern) -> T | None:
        return self.trie.find(pattern) if is_simple(pattern) else self.bitmap.find(pattern)

    def remove(self, pattern: Pattern) -> T:
        return self.trie.remove(pattern) if is_simple(pattern) else self.bitmap.remove(pattern)

    def collect(self, key: str, words: list[str], found: list[T]) -> None:
        """Append the targets of the patterns that match a key of these words, each once."""
        if self.trie.size:
            self.trie.collect(words, found)
        if self.bitmap.size:
            self.bitmap.collect(key, words, found)


SHORT_WORDS: Final = 8
"""The most words of a key that is compared with patterns one by one."""


class Tiered(Generic[T]):
    """An engine of two tiers, each a trie and a bitmap: one for patterns with several `#`, one for all others.

    While the patterns with several `#` are few, a short key is compared with some of them, and their tier is not used:
    it would make every match much slower for the sake of a few patterns like `#.a.#`.

    Invariant: `visited` includes the counts of the tiers, and the patterns compared. The tier for several `#` exists
        exactly while there is such a pattern.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self._dialect = dialect
        self._words = dialect.words
        self._plain: Tier[T] = Tier(dialect)
        self._several: Tier[T] | None = None
        self._compared: ComparedPatterns[T] = ComparedPatterns()
        self._visited_before = 0  # the patterns compared, and the counts of removed tiers

    @property
    def visited(self) -> int:
        several = self._several
        return self._visited_before + self._plain.visited + (0 if several is None else several.visited)

    @property
    def size(self) -> int:
        return self._plain.size + (0 if self._several is None else self._several.size)

    def counts(self) -> Mapping[str, int]:
        """Return the sizes within both tiers, and the number of patterns that keys are compared with."""
        counts = dict(self._plain.counts())
        if self._several is not None:
            for name, count in self._several.counts().items():
                counts[name] += count
        return {**counts, "compared": self._compared.size}

    def add(self, pattern: Pattern, target: T) -> T | None:
        if pattern.words.count(HASH) < 2:
            return self._plain.add(pattern, target)
        if self._several is None:
            self._several = Tier(self._dialect)
        known = self._several.add(pattern, target)
        if known is None:
            self._compared.add(pattern, target)
        return known

    def find(self, pattern: Pattern) -> T | None:
        if pattern.words.count(HASH) < 2:
            return self._plain.find(pattern)
        return None if self._several is None else self._several.find(pattern)

    def remove(self, pattern: Pattern) -> T:
        if pattern.words.count(HASH) < 2:
            return self._plain.remove(pattern)
        several = self._several
        if several is None:
            raise KeyError(pattern.text)
        target = several.remove(pattern)
        self._compared.remove(pattern)
        if not several.size:
            self._visited_before += several.visited
            self._several = None
        return target

    def match(self, key: str) -> list[T]:
        found: list[T] = []
        words = self._words(key)
        self._plain.collect(key, words, found)
        several = self._several
        if several is None:
            return found
        if self._compared.left_out or len(words) > SHORT_WORDS:
            several.collect(key, words, found)
        else:
            self._visited_before += self._compared.collect(words, found)
        return found
