"""The tables of the words that patterns expect on one side of a key, and those of patterns with a `#` for long keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from bitarray import bitarray

from broker.routing.engines.bitmap_places import SuspectSection
from broker.routing.engines.bitmap_table import Table, fit_row
from broker.routing.pattern import HASH, TopicDialect

T = TypeVar("T")


class Side:
    """One table for each place, counted from one end of the key, and for each place the columns that end before it.

    A key is followed from the innermost place outwards: the columns that end right after a place are added, then those
    that want another word at it are removed. So a column has bits at its own places and at its end, and none at any
    place beyond, however long other patterns are.

    Invariant: some column ends after the last table. A place where none ends has no row.
    """

    __slots__ = ("_columns", "_sizes", "ends", "tables")

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._sizes: list[int] = [0]
        self.ends: list[bitarray | None] = [None]
        self.tables: list[Table] = []

    def reach(self, words: Sequence[str]) -> bitarray:
        """Return the columns that take the words of a key at their places. Cost: at most two rows per word."""
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

    def want(self, column: int, words: Sequence[str]) -> None:
        """Make a column accept only these words of a pattern, a star being any word. Cost: the words."""
        while len(self.tables) < len(words):
            self.tables.append(Table(self._columns))
            self.ends.append(None)
            self._sizes.append(0)
        for word, table in zip(words, self.tables, strict=False):
            table.want(column, word)
        end = self.ends[len(words)]
        if end is None:
            end = self.ends[len(words)] = bitarray(self._columns)
        end[column] = 1
        self._sizes[len(words)] += 1

    def unwant(self, column: int, words: Sequence[str]) -> None:
        """Undo `want`."""
        for word, table in zip(words, self.tables, strict=False):
            table.unwant(column, word)
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
        """Resize every row to this number of columns."""
        self._columns = columns
        for end in self.ends:
            if end is not None:
                fit_row(end, columns)
        for table in self.tables:
            table.resize(columns)

    def counts(self) -> Mapping[str, int]:
        """Return the number of words with a row of bits, and of those with a list of columns."""
        counts = [table.counts() for table in self.tables]
        return {name: sum(count[name] for count in counts) for name in ("rows", "lists")}


class OpenTables(SuspectSection[T]):
    """Tables for the words before the first `#`, counted from the left, and after the last, counted from the right.

    `fits[n]` are the columns that a key of n words, or of more, is long enough for: without that, first and last words
    could be the same ones. For a pattern with one `#` these checks suffice.

    A pattern with several `#` has no target here: if its column remains, it may match.
    """

    __slots__ = ("_sizes", "fits", "head", "tail")

    def __init__(self, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.head = Side(self.capacity)
        self.tail = Side(self.capacity)
        self.fits: list[bitarray] = [bitarray(self.capacity)]
        self._sizes: list[int] = [0]

    def collect(self, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the patterns with one `#` that match, and return the strides of suspects.

        Cost: four rows per word with a bit per column, and the targets.
        """
        bits = self.head.reach(words)
        if self.tail.tables:
            bits &= self.tail.reach(words[::-1])
        fits = self.fits
        length = len(words)
        bits &= fits[length] if length < len(fits) else fits[-1]
        return self.find_targets(bits, words, found)

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows and lists in all tables."""
        head = self.head.counts()
        tail = self.tail.counts()
        return {name: head[name] + tail[name] for name in head}

    def _mark(self, column: int, words: tuple[str, ...]) -> None:
        first = words.index(HASH)
        self.head.want(column, words[:first])
        self.tail.want(column, _tail(words))
        size = size_of(words)
        while len(self.fits) <= size:
            self.fits.append(self.fits[-1].copy())
            self._sizes.append(0)
        for length in range(size, len(self.fits)):
            self.fits[length][column] = 1
        self._sizes[size] += 1
        self.suspects.mark(column, words)

    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        first = words.index(HASH)
        self.head.unwant(column, words[:first])
        self.tail.unwant(column, _tail(words))
        size = size_of(words)
        for length in range(size, len(self.fits)):
            self.fits[length][column] = 0
        self._sizes[size] -= 1
        while len(self.fits) > 1 and not self._sizes[-1]:
            self.fits.pop()
            self._sizes.pop()
        self.suspects.unmark(column, words)

    def _resize(self, columns: int) -> None:
        for row in self.fits:
            fit_row(row, columns)
        self.suspects.resize(columns)
        self.head.resize(columns)
        self.tail.resize(columns)


def size_of(words: Sequence[str]) -> int:
    """Return the least number of words in a matching key."""
    return len(words) - words.count(HASH)


def _tail(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words after the last `#`, from the right."""
    backwards = words[::-1]
    length = backwards.index(HASH)
    return backwards[:length]
