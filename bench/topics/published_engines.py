"""The engines that articles describe, for comparison with the topic index; the broker does not contain them.

Source: "Very fast and scalable topic routing", part 1, RabbitMQ, 2010; Theivendiram and Uthayakumar, Fast Topic
Matching Algorithm Implementation for WSO2 Message Broker, 2015.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from bitarray import bitarray

from broker.routing import index
from broker.routing.index import TopicEngine
from broker.routing.pattern import AMQP, HASH, STAR, Pattern, TopicDialect, words_match

T = TypeVar("T")

Words = tuple[str, ...]
EMPTY: Final[set[Words]] = set()  # must not be changed
CACHE_ENTRIES: Final = 1 << 20
"""The largest number of cached words and patterns under words: some 60 MB. A full cache is emptied."""
BITS_MOST: Final = 8 * 16 * 1024 * 1024


class SplitOnce(Generic[T]):
    """Test the message against each pattern: a pattern is split into words when it is added, a key once per match.

    Cost: a match costs all patterns for any key; add and remove cost one look-up. `visited` counts patterns.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._dialect = dialect
        self._patterns: dict[Any, T] = {}

    @property
    def size(self) -> int:
        """The number of patterns."""
        return len(self._patterns)

    def counts(self) -> Mapping[str, int]:
        return {"patterns": len(self._patterns)}

    def add(self, pattern: Pattern, target: T) -> T | None:
        known = self.find(pattern)
        if known is None:
            self._patterns[self._key(pattern)] = target
        return known

    def find(self, pattern: Pattern) -> T | None:
        return self._patterns.get(self._key(pattern))

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is missing."""
        target = self._patterns.pop(self._key(pattern))
        if not self._patterns:
            self._patterns.clear()  # a dict keeps its size when keys are deleted
        return target

    def match(self, key: str) -> list[T]:
        self.visited += len(self._patterns)
        words = self._dialect.words(key)
        return [target for pattern, target in self._patterns.items() if words_match(pattern, words)]

    def _key(self, pattern: Pattern) -> Hashable:
        return pattern.words


class Conventional(SplitOnce[T]):
    """Split both the message's key and the binding key again for each test: three times as slow as `SplitOnce`."""

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match. Cost: all patterns."""
        self.visited += len(self._patterns)
        dialect = self._dialect
        return [
            target
            for text, target in self._patterns.items()
            if words_match(dialect.parse(text).words, dialect.words(key))
        ]

    def _key(self, pattern: Pattern) -> Hashable:
        return pattern.text


class Length:
    """The patterns with the same number of words: all, and for each level a row of patterns under each word."""

    def __init__(self, levels: int) -> None:
        self.patterns: set[Words] = set()
        self.rows: list[dict[str, set[Words]]] = [{} for _ in range(levels)]


class WordEngine(SplitOnce[T]):
    """Intersect the sets of patterns that fit the key's word at each level.

    A `#` has no level, because it shifts all levels after it: patterns with a `#` are in a linear residue, and so is
    the empty pattern, which has no level. `visited` counts patterns: scanned, intersected, or in the residue.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        super().__init__(dialect)
        self._lengths: dict[int, Length] = {}
        self._residue: set[Words] = set()

    def counts(self) -> Mapping[str, int]:
        """Return the number of patterns in rows, of patterns in the residue, and of words that have a row."""
        words = sum(len(row) for length in self._lengths.values() for row in length.rows)
        residue = len(self._residue)
        return {"patterns": len(self._patterns) - residue, "residue": residue, "words": words}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target, or return the target that it already has. Cost: the words of the pattern."""
        known, words = super().add(pattern, target), pattern.words
        if known is not None:
            return known
        if not words or HASH in words:
            self._residue.add(words)
            return None
        length = self._lengths.get(len(words))
        if length is None:
            self._lengths[len(words)] = length = Length(len(words))
        length.patterns.add(words)
        self._mark(length, words)
        return None

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is missing. Cost: the pattern's words."""
        target, words = super().remove(pattern), pattern.words
        if words in self._residue:
            self._residue.remove(words)
        else:
            length = self._lengths[len(words)]
            length.patterns.remove(words)
            self._unmark(length, words)
            if not length.patterns:
                self._forget(self._lengths.pop(len(words)))
        if not self._patterns:
            self._residue.clear()  # a set keeps its size, as a dict does
            self._lengths.clear()
        return target

    def match(self, key: str) -> list[T]:
        words, patterns = self._dialect.words(key), self._patterns
        self.visited += len(self._residue)
        found = [patterns[pattern] for pattern in self._residue if words_match(pattern, words)]
        length = self._lengths.get(len(words))
        return found if length is None else found + [patterns[one] for one in self._common(length, words)]

    @abstractmethod
    def _mark(self, length: Length, words: Words) -> None:
        """Add a pattern to its rows."""

    @abstractmethod
    def _unmark(self, length: Length, words: Words) -> None:
        """Remove a pattern from its rows."""

    @abstractmethod
    def _common(self, length: Length, words: Sequence[str]) -> set[Words]:
        """Return the patterns that fit at all levels."""

    def _forget(self, length: Length) -> None:
        """Adjust the counts after the last pattern of a length was removed."""


class TopicWords(WordEngine[T]):
    """Cache the patterns that fit each word that a message had at a level.

    A word that is not cached costs a scan of the patterns, so publishers with varying words make this engine linear,
    with a large factor. Cost: a match costs the residue, the patterns under its rarest word, and a scan per word
    not cached. Add and remove cost the pattern's words, and for each star in it the words cached at its level.
    """

    def __init__(self, dialect: TopicDialect = AMQP, cache_entries: int = CACHE_ENTRIES) -> None:
        super().__init__(dialect)
        self._cache_entries = cache_entries
        self._cached = 0

    def counts(self) -> Mapping[str, int]:
        """Return the counts of all word engines, and the number of patterns under cached words."""
        counts = super().counts()
        return {**counts, "fits": self._cached - counts["words"]}

    def _mark(self, length: Length, words: Words) -> None:
        for row in self._rows(length, words):
            row.add(words)
            self._cached += 1
        if self._cached > self._cache_entries:
            self._forget_words()

    def _unmark(self, length: Length, words: Words) -> None:
        for row in self._rows(length, words):
            row.remove(words)
            self._cached -= 1

    def _forget(self, length: Length) -> None:
        self._cached -= sum(len(row) for row in length.rows)

    def _common(self, length: Length, words: Sequence[str]) -> set[Words]:
        rows: list[set[Words]] = []
        for level, word in enumerate(words):
            row = length.rows[level].get(word)
            if row is None:
                row = self._cache(length, level, word)
            if not row:
                return EMPTY
            rows.append(row)
        rows.sort(key=len)
        common = rows[0]
        for row in rows[1:]:
            self.visited += len(common)
            common = common & row
        return common

    def _rows(self, length: Length, words: Words) -> list[set[Words]]:
        """Return the cached rows that a pattern belongs to."""
        rows: list[set[Words]] = []
        for row, word in zip(length.rows, words, strict=True):
            rows += row.values() if word == STAR else [row[word]] if word in row else []
        return rows

    def _cache(self, length: Length, level: int, word: str) -> set[Words]:
        """Return the row of a word that is not cached, and cache it if the cache can hold it at all."""
        row = {words for words in length.patterns if words[level] == word or words[level] == STAR}
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


class PatternWords(WordEngine[T]):
    """Index the patterns under each of their words; a star has a row of its own.

    Cost: a match costs the residue and, for each word, the patterns that fit the message's rarest word; with many stars
    that grows with all patterns. Add and remove cost the pattern's words.
    """

    def _mark(self, length: Length, words: Words) -> None:
        for row, word in zip(length.rows, words, strict=True):
            row.setdefault(word, set()).add(words)

    def _unmark(self, length: Length, words: Words) -> None:
        for row, word in zip(length.rows, words, strict=True):
            row[word].remove(words)
            if not row[word]:
                del row[word]

    def _common(self, length: Length, words: Sequence[str]) -> set[Words]:
        levels = [(row.get(word, EMPTY), row.get(STAR, EMPTY)) for row, word in zip(length.rows, words, strict=True)]
        levels.sort(key=lambda sets: len(sets[0]) + len(sets[1]))
        (fits, stars), *others = levels
        common = fits | stars
        for fits, stars in others if common else ():
            self.visited += len(common)
            common = (common & fits) | (common & stars)
        return common


class PlainBitmap(SplitOnce[T]):
    """The plain inverted bitmap: a row for each routing key seen, a bit for each pattern.

    Indexing tests a new key against all patterns and a new pattern against all keys that have rows. Matching takes the
    row of the key. The rows are the index itself, not a cache, but publishers create them, so they are bounded: when
    their bits exceed `bits_most`, all are dropped. The bit of a removed pattern is 0 in every row, and the next pattern
    uses its position.

    Shapes: a row has the words of its key; a column at a deleted position is None.
    Cost: a match costs a bit per pattern if the key has a row, otherwise a test of every pattern, which costs the words
        of the key times those of the pattern. An add tests every row, a remove clears a bit in each.
    Invariant: `visited` counts tests of one key against one pattern, and rows looked up.
    """

    def __init__(self, dialect: TopicDialect = AMQP, *, bits_most: int = BITS_MOST) -> None:
        super().__init__(dialect)
        self._bits_most = bits_most
        self._rows: dict[str, tuple[list[str], bitarray]] = {}
        self._positions: dict[Words, int] = {}
        self._columns: list[tuple[Words, T] | None] = []
        self._deleted: list[int] = []

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows, and of columns including those at deleted positions."""
        return {"rows": len(self._rows), "columns": len(self._columns)}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target, or return the target that it already has. Cost: a test for every row."""
        known = super().add(pattern, target)
        if known is not None:
            return known
        if not self._deleted:
            self._deleted.append(len(self._columns))
            self._columns.append(None)
            self._make_room()
            for _, row in self._rows.values():
                row.append(0)
        position = self._positions[pattern.words] = self._deleted.pop()
        self._columns[position] = pattern.words, target
        for words, row in self._rows.values():
            row[position] = words_match(pattern.words, words)
        self.visited += len(self._rows)
        return None

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Cost: a bit in every row. Raises: KeyError if it is missing."""
        target = super().remove(pattern)
        position = self._positions.pop(pattern.words)
        self._columns[position] = None
        self._deleted.append(position)
        for _, row in self._rows.values():
            row[position] = 0
        if not self._positions:
            for kept in (self._rows, self._positions, self._columns, self._deleted):
                kept.clear()
        return target

    def match(self, key: str) -> list[T]:
        columns = self._columns
        if not columns:
            return []
        if key in self._rows:
            row = self._rows[key][1]
            self.visited += 1
        else:
            words = self._dialect.words(key)
            row = bitarray([column is not None and words_match(column[0], words) for column in columns])
            self.visited += len(columns)
            self._rows[key] = words, row
            self._make_room()
        return [column[1] for position in row.search(1) if (column := columns[position]) is not None]

    def _make_room(self) -> None:
        if len(self._rows) * len(self._columns) > self._bits_most:
            self._rows.clear()


PUBLISHED: Final[dict[str, type[Any]]] = {
    "conventional": Conventional,
    "split-once": SplitOnce,
    "topic-words": TopicWords,
    "pattern-words": PatternWords,
    "plain-bitmap": PlainBitmap,
}
ENGINES: Final[dict[str, type[Any]]] = {**PUBLISHED, **index.ENGINES}
"""Every engine, by name; each takes a dialect."""


def make_engine(name: str, dialect: TopicDialect = AMQP) -> TopicEngine[Any]:
    """Return a new, empty engine of that name."""
    engine: TopicEngine[Any] = ENGINES[name](dialect)
    return engine
