"""A side: tables for words counted from one end of a key. Two sides match long keys with patterns that have a `#`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from bitarray import bitarray

from broker.routing.engines.bitmap_places import CandidateSection
from broker.routing.engines.bitmap_table import Table, fit_row
from broker.routing.pattern import HASH, TopicDialect

T = TypeVar("T")


class Side:
    """A table for each word position, counted from one end of the key, and the columns that end at each position.

    A key is read from the innermost position outwards: the columns that end right after a position are added, then
    those that require another word at the position are removed. So a column has bits at its own positions and its end,
    and none further in, however long other patterns are.

    Invariant: some column ends after the last table, if any. `ends` has no row where no column ends.
    """

    __slots__ = ("_columns", "_sizes", "ends", "tables")

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._sizes: list[int] = [0]
        self.ends: list[bitarray | None] = [None]
        self.tables: list[Table] = []

    def columns_of(self, words: Sequence[str]) -> bitarray:
        """Return the columns whose words match those of a key. Cost: at most two rows per word."""
        tables = self.tables
        ends = self.ends
        place = len(tables)
        if len(words) < place:
            place = len(words)
        end = ends[place]
        bits = bitarray(self._columns) if end is None else end.copy()
        while place:
            place -= 1
            tables[place].narrow(bits, words[place])
            end = ends[place]
            if end is not None:
                bits |= end
        return bits

    def set_words(self, column: int, words: Sequence[str]) -> None:
        """Make a column accept only these words; a star accepts any word. Cost: the words."""
        while len(self.tables) < len(words):
            self.tables.append(Table(self._columns))
            self.ends.append(None)
            self._sizes.append(0)
        for word, table in zip(words, self.tables, strict=False):
            table.set_word(column, word)
        end = self.ends[len(words)]
        if end is None:
            end = self.ends[len(words)] = bitarray(self._columns)
        end[column] = 1
        self._sizes[len(words)] += 1

    def clear_words(self, column: int, words: Sequence[str]) -> None:
        """Undo `set_words`."""
        for word, table in zip(words, self.tables, strict=False):
            table.clear_word(column, word)
        end = self.ends[len(words)]
        assert end is not None
        end[column] = 0
        self._sizes[len(words)] -= 1
        if not self._sizes[len(words)]:
            self.ends[len(words)] = None
        while self.tables and not self._sizes[-1]:
            self.tables.pop()
            self.ends.pop()
            self._sizes.pop()

    def resize(self, columns: int) -> None:
        self._columns = columns
        for end in self.ends:
            if end is not None:
                fit_row(end, columns)
        for table in self.tables:
            table.resize(columns)

    def counts(self) -> Mapping[str, int]:
        counts = [table.counts() for table in self.tables]
        return {name: sum(count[name] for count in counts) for name in ("rows", "lists")}


class OpenTables(CandidateSection[T]):
    """Tables for the words before the first `#`, counted from the left, and after the last `#`, counted from the right.

    `fits[n]` marks the patterns for which a key of n words is long enough; without that check, a word of the key could
    match both a first and a last word of the pattern. For a pattern with one `#` these checks suffice. A pattern with
    several `#` has no target here: if its column remains, the pattern may match.
    """

    __slots__ = ("_sizes", "fits", "head", "tail")

    def __init__(self, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.head = Side(self.capacity)
        self.tail = Side(self.capacity)
        self.fits: list[bitarray] = [bitarray(self.capacity)]
        self._sizes: list[int] = [0]

    def collect(self, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the patterns with one `#` that match, and return the strides of candidates.

        Cost: at most four rows per word, with a bit per column, and the targets.
        """
        bits = self.head.columns_of(words)
        if self.tail.tables:
            bits &= self.tail.columns_of(words[::-1])
        fits = self.fits
        length = len(words)
        bits &= fits[length] if length < len(fits) else fits[-1]
        return self.find_targets(bits, words, found)

    def counts(self) -> Mapping[str, int]:
        head = self.head.counts()
        tail = self.tail.counts()
        return {name: head[name] + tail[name] for name in head}

    def _mark(self, column: int, words: tuple[str, ...]) -> None:
        first = words.index(HASH)
        self.head.set_words(column, words[:first])
        self.tail.set_words(column, _tail(words))
        size = size_of(words)
        while len(self.fits) <= size:
            self.fits.append(self.fits[-1].copy())
            self._sizes.append(0)
        for length in range(size, len(self.fits)):
            self.fits[length][column] = 1
        self._sizes[size] += 1
        self.candidates.mark(column, words)

    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        first = words.index(HASH)
        self.head.clear_words(column, words[:first])
        self.tail.clear_words(column, _tail(words))
        size = size_of(words)
        for length in range(size, len(self.fits)):
            self.fits[length][column] = 0
        self._sizes[size] -= 1
        while len(self.fits) > 1 and not self._sizes[-1]:
            self.fits.pop()
            self._sizes.pop()
        self.candidates.unmark(column, words)

    def _resize(self, columns: int) -> None:
        for row in self.fits:
            fit_row(row, columns)
        self.candidates.resize(columns)
        self.head.resize(columns)
        self.tail.resize(columns)


def size_of(words: Sequence[str]) -> int:
    """Return the least number of words of a key that a pattern of these words matches."""
    return len(words) - words.count(HASH)


def _tail(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words after the last `#`, in reverse order."""
    backwards = words[::-1]
    length = backwards.index(HASH)
    return backwards[:length]
