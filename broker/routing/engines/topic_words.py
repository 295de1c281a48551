"""Message topics cached word by word, each with the patterns that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.split_once import SplitOnce
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")

CACHE_ENTRIES: Final = 1 << 20
"""How many words and patterns under words are cached at most: some 60 MB. Full, the cache starts over."""


class TopicLength:
    """The patterns of one number of words, by number, and per level the words seen there in messages.

    A row holds the numbers of the patterns that have this word, or a star, at this level.
    """

    __slots__ = ("patterns", "rows")

    def __init__(self, levels: int) -> None:
        self.patterns: dict[int, tuple[str, ...]] = {}
        self.rows: list[dict[str, set[int]]] = [{} for _ in range(levels)]

    def scan(self, level: int, word: str) -> set[int]:
        """Return the row of a word. Cost: all patterns of this length."""
        return {number for number, words in self.patterns.items() if words[level] == word or words[level] == STAR}


class TopicWords(Generic[T]):
    """Maps patterns to targets; for each word that messages had at a level the patterns that it fits are cached.

    A message's targets are what the rows of its words have in common. A word that is not cached costs a scan of the
    patterns; so publishers who vary their words make this engine linear, and that many times over. There is no row
    that a `#` could be in, for it moves all levels after it: patterns with one stay in a linear residue, and so does
    the empty pattern, which has no level.

    Cost: a match costs the residue, the patterns under its rarest word, and a scan per word not cached. Add and remove
    cost the pattern's words, and for each star in it the words cached at its level.
    `visited` counts patterns: scanned, intersected, or in the residue.

    Source: "Very fast and scalable topic routing", part 1, RabbitMQ, 2010, approach 1; AMQP 0-9-1, 3.1.3.3 suggests to
    hold all known routing keys and to update them as publishers use new ones.
    """

    def __init__(self, dialect: TopicDialect = AMQP, cache_entries: int = CACHE_ENTRIES) -> None:
        self.visited = 0
        self._dialect = dialect
        self._cache_entries = cache_entries
        self._cached = 0
        self._next = 0
        self._numbers: dict[tuple[str, ...], int] = {}
        self._targets: dict[int, T] = {}
        self._lengths: dict[int, TopicLength] = {}
        self._residue: SplitOnce[T] = SplitOnce(dialect)

    def __len__(self) -> int:
        return len(self._numbers) + len(self._residue)

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of patterns in the tables and outside, of words cached, and of patterns under them."""
        words = sum(len(row) for length in self._lengths.values() for row in length.rows)
        return {
            "patterns": len(self._numbers),
            "residue": len(self._residue),
            "words": words,
            "fits": self._cached - words,
        }

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already."""
        words = pattern.words
        if not words or HASH in words:
            return self._residue.add(pattern, target)
        number = self._numbers.get(words)
        if number is not None:
            return self._targets[number]
        number = self._next
        self._next += 1
        self._numbers[words] = number
        self._targets[number] = target
        length = self._lengths.get(len(words))
        if length is None:
            self._lengths[len(words)] = length = TopicLength(len(words))
        length.patterns[number] = words
        for row in self._rows(length, words):
            row.add(number)
            self._cached += 1
        if self._cached > self._cache_entries:
            self._forget_words()
        return None

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        number = self._numbers.get(pattern.words)
        return self._residue.find(pattern) if number is None else self._targets[number]

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is not there."""
        words = pattern.words
        number = self._numbers.get(words)
        if number is None:
            return self._residue.remove(pattern)
        length = self._lengths[len(words)]
        for row in self._rows(length, words):
            row.remove(number)
            self._cached -= 1
        del length.patterns[number]
        if not length.patterns:
            del self._lengths[len(words)]
            self._cached -= sum(len(row) for row in length.rows)
        del self._numbers[words]
        target = self._targets.pop(number)
        if not self._numbers:
            self._numbers.clear()  # a dict keeps its size when keys are deleted
            self._targets.clear()
            self._lengths.clear()
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match."""
        words = self._dialect.words(key)
        found = self._residue.match_words(words)
        self.visited += len(self._residue)
        length = self._lengths.get(len(words))
        if length is None:
            return found
        rows: list[set[int]] = []
        for level, word in enumerate(words):
            row = length.rows[level].get(word)
            if row is None:
                row = self._cache(length, level, word)
            if not row:
                return found
            rows.append(row)
        rows.sort(key=len)
        common = rows[0]
        for row in rows[1:]:
            self.visited += len(common)
            common = common & row
        for number in common:
            found.append(self._targets[number])
        return found

    def _rows(self, length: TopicLength, words: tuple[str, ...]) -> list[set[int]]:
        """Return the cached rows that a pattern belongs to."""
        rows: list[set[int]] = []
        for level, word in enumerate(words):
            if word == STAR:
                rows += length.rows[level].values()
            elif word in length.rows[level]:
                rows.append(length.rows[level][word])
        return rows

    def _cache(self, length: TopicLength, level: int, word: str) -> set[int]:
        """Return the row of a word that is not cached, and cache it if the cache can hold it at all."""
        row = length.scan(level, word)
        self.visited += len(length.patterns)
        size = 1 + len(row)
        if self._cached + size > self._cache_entries:
            self._forget_words()
        if size <= self._cache_entries:
            length.rows[level][word] = row
            self._cached += size
        return row

    def _forget_words(self) -> None:
        for length in self._lengths.values():
            for row in length.rows:
                row.clear()
        self._cached = 0
