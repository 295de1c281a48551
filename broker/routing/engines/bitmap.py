"""The constituent inverted bitmap: a table for each position in a key, a row for each word, a bit for each pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

from broker.routing.engines.bitmap_places import CandidateSection, PlaceTable, stride_of
from broker.routing.engines.bitmap_side import OpenTables, Side, size_of
from broker.routing.engines.bitmap_table import Section
from broker.routing.pattern import AMQP, HASH, STAR, Pattern, TopicDialect

T = TypeVar("T")

SPREAD_WORDS_MAX: Final = 6
"""Keys of up to this many words have tables for their length, which contain patterns with a `#` too. Few keys are
longer, and each length costs such a pattern one more column."""


class ClosedTables(CandidateSection[T]):
    """One table for each word position, for keys of one length in words.

    A pattern with a `#` is expanded to the length: the words before its first `#`, as many stars as needed, and the
    words after its last `#`.
    """

    def __init__(self, length: int, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.length = length
        self.side = Side(self.capacity)

    def collect(self, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the patterns that match, and return the strides of candidates (`Candidates.extract`).

        Cost: at most two rows per word, and the targets.
        """
        return self.find_targets(self.side.columns_of(words), words, found)

    def counts(self) -> Mapping[str, int]:
        return self.side.counts()

    def _mark(self, column: int, words: tuple[str, ...]) -> None:
        self.side.set_words(column, self._closed_words(words))
        self.candidates.mark(column, words)

    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        self.side.clear_words(column, self._closed_words(words))
        self.candidates.unmark(column, words)

    def _resize(self, columns: int) -> None:
        self.side.resize(columns)
        self.candidates.resize(columns)

    def _closed_words(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words that a pattern requires in a key of this length; any words may follow them."""
        if HASH not in words:
            return words
        first_hash = words.index(HASH)
        head = words[:first_hash]
        backwards = words[::-1]
        tail_length = backwards.index(HASH)
        if not tail_length:
            return head
        return head + (STAR,) * (self.length - len(head) - tail_length) + words[-tail_length:]


class ConstituentBitmap(Generic[T]):
    """An engine that ANDs one row of bits for each word of a key, with a bit for each pattern.

    A key is split into its constituents, the words. Each position has a table, in which the row of a word marks the
    patterns that accept the word there. Keys of up to SPREAD_WORDS_MAX words have tables for their length, with all
    patterns that may match them. For longer keys, the patterns without `#` are in tables by length, and all others in
    one set of tables. Literal patterns are in a separate map.

    Cost: a match reads a few rows per word, with a bit for each pattern. `add` and `remove` cost the words of the
        pattern; if it has a `#`, once for each key length up to SPREAD_WORDS_MAX. A star also costs the dense rows of
        its table, at most about 256.
    Invariant: a match adds nothing to the tables. `visited` is about the number of rows that matches have read.
    Source: Theivendiram and Uthayakumar, Fast Topic Matching Algorithm Implementation for WSO2 Message Broker, 2015,
        "Optimized topic routing algorithm"; docs/inverted-bitmap.md explains the differences.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._dialect = dialect
        self._words = dialect.words
        self._literals: dict[str, T] = {}
        self._closed: dict[int, ClosedTables[T]] = {}
        self._open: OpenTables[T] | None = None
        self._places: dict[int, PlaceTable[T]] = {}
        self.size = 0

    def counts(self) -> Mapping[str, int]:
        """Return the number of literal patterns, columns, rows of bits, lists of columns and tables of places."""
        sections = self._sections()
        rows = [section.counts() for section in sections]
        return {
            "literals": len(self._literals),
            "columns": sum(section.width() for section in sections),
            "rows": sum(count["rows"] for count in rows),
            "lists": sum(count["lists"] for count in rows),
            "places": len(self._places),
        }

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target and return None, or return the target that the pattern already has."""
        known = self.find(pattern)
        if known is not None:
            return known
        if pattern.literal:
            self._literals[pattern.text] = target
        else:
            self._add_columns(pattern.text, pattern.words, target)
        self.size += 1
        return None

    def _add_columns(self, text: str, words: tuple[str, ...], target: T) -> None:
        hashes = words.count(HASH)
        for length in _lengths(words):
            closed = self._closed.get(length)
            if closed is None:
                closed = self._closed[length] = ClosedTables(length, self._dialect)
            closed.add(text, words, target if hashes <= 1 else None)
        if not hashes:
            return
        if self._open is None:
            self._open = OpenTables(self._dialect)
        self._open.add(text, words, target if hashes == 1 else None)
        if hashes > 1:
            stride = stride_of(words)
            places = self._places.get(stride)
            if places is None:
                places = self._places[stride] = PlaceTable(stride, self._dialect)
            places.add(text, words, target)

    def find(self, pattern: Pattern) -> T | None:
        if pattern.literal:
            return self._literals.get(pattern.text)
        section = self._section(pattern)
        return None if section is None else section.find(pattern.text)

    def remove(self, pattern: Pattern) -> T:
        """Remove one pattern and return its target. Raises: KeyError if it is missing."""
        text = pattern.text
        target = self._literals.pop(text) if pattern.literal else self._remove_columns(pattern)
        self.size -= 1
        if not self.size:
            self._literals = {}  # an emptied dict keeps its memory
            self._closed = {}
            self._places = {}
        return target

    def _remove_columns(self, pattern: Pattern) -> T:
        text = pattern.text
        words = pattern.words
        section = self._section(pattern)
        target = None if section is None else section.find(text)
        if target is None:
            raise KeyError(text)
        for length in _lengths(words):
            closed = self._closed[length]
            closed.remove(text, words)
            if not closed.size:
                del self._closed[length]
        if HASH in words:
            assert self._open is not None
            self._open.remove(text, words)
            if not self._open.size:
                self._open = None
        if words.count(HASH) > 1:
            places = self._places[stride_of(words)]
            places.remove(text, words)
            if not places.size:
                del self._places[places.stride]
        return target

    def match(self, key: str) -> list[T]:
        found: list[T] = []
        self.collect(key, self._words(key), found)
        return found

    def collect(self, key: str, words: list[str], found: list[T]) -> None:
        """Append the targets of the patterns that match a key of these words, each once."""
        literal = self._literals.get(key)
        if literal is not None:
            found.append(literal)
        length = len(words)
        strides = 0
        closed = self._closed.get(length)
        if closed is not None:
            self.visited += length
            strides = closed.collect(words, found)
        opened = self._open
        if opened is not None and length > SPREAD_WORDS_MAX:
            self.visited += 1 + min(length, len(opened.head.tables)) + min(length, len(opened.tail.tables))
            strides = opened.collect(words, found)
        if strides:
            for stride, places in self._places.items():
                if strides >> stride & 1:
                    self.visited += 2 * length
                    places.collect(words, found)

    def _section(self, pattern: Pattern) -> Section[T] | None:
        """Return the section that has the target of a pattern, or None if there is no such section."""
        hashes = pattern.words.count(HASH)
        if not hashes:
            return self._closed.get(len(pattern.words))
        return self._open if hashes == 1 else self._places.get(stride_of(pattern.words))

    def _sections(self) -> list[ClosedTables[T] | OpenTables[T] | PlaceTable[T]]:
        opened = [] if self._open is None else [self._open]
        return [*self._closed.values(), *opened, *self._places.values()]


def _lengths(words: tuple[str, ...]) -> range:
    """Return the key lengths, in words, in whose tables a pattern has a column."""
    if HASH in words:
        return range(size_of(words), SPREAD_WORDS_MAX + 1)
    return range(len(words), len(words) + 1)
