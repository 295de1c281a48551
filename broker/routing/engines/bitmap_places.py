"""Patterns with several `#`: tables that match many of them at once, and a filter for those that may match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from bitarray import bitarray

from broker.routing.engines.bitmap_table import COLUMNS_STEP, Section, Table, fit_row
from broker.routing.pattern import HASH, TopicDialect

T = TypeVar("T")
CANDIDATES_CHECKED_MAX: Final = 8
"""The most columns that are checked one by one; beyond that, treating all as candidates costs less."""

ALL: Final = -1
"""The bits of all strides."""


class PlaceTable(Section[T]):
    """Rows whose bits are the places between the words of patterns, `stride` places for each pattern.

    The bit of a place is set when the words of the key so far may lead to it. Each word moves all bits one place on and
    clears them at places that do not accept it; at a `#` the bit also stays. So all patterns, and all ways to match
    each, are advanced by the same few operations on rows, however hostile the patterns are. The places of 64 patterns
    are interleaved, all first places before all second ones, so moving by one place is a shift by 64 bits, which is a
    move of memory. The last places move into the first places of the next 64 patterns, which no word leads to.

    Source: Shift-And with gaps: Baeza-Yates and Gonnet, A New Approach to Text Searching, CACM 35 (1992); Wu and
    Manber, Fast Text Searching, in the same issue.
    """

    __slots__ = ("_ends", "_starts", "_stays", "_table", "stride")

    def __init__(self, stride: int, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        bits = self.capacity * stride
        self.stride = stride
        self._table = Table(bits)
        self._starts: bitarray = bitarray(bits)
        self._stays: bitarray = bitarray(bits)
        self._ends: bitarray = bitarray(bits)

    def collect(self, words: Sequence[str], found: list[T]) -> None:
        """Append the targets of the patterns that match. Cost: a few rows per word, with a bit per place."""
        reached = self._starts.copy()
        stays = self._stays
        table = self._table
        for word in words:
            stayed = reached & stays
            reached >>= COLUMNS_STEP  # one place on: bits are numbered from the left
            table.narrow(reached, word)
            reached |= stayed
        reached &= self._ends
        if not reached.any():
            return
        targets = self.targets
        bits_a_block = self.stride * COLUMNS_STEP
        for place in reached.search(1):
            block, offset = divmod(place, bits_a_block)
            target = targets[block * COLUMNS_STEP + offset % COLUMNS_STEP]
            if target is not None:
                found.append(target)

    def counts(self) -> Mapping[str, int]:
        return self._table.counts()

    def _first_place(self, column: int) -> int:
        return (column // COLUMNS_STEP * self.stride) * COLUMNS_STEP + column % COLUMNS_STEP

    def _mark(self, column: int, words: tuple[str, ...]) -> None:
        place = self._first_place(column)
        self._starts[place] = 1
        for word in words:
            if word == HASH:
                self._stays[place] = 1
            else:
                place += COLUMNS_STEP
                self._table.set_word(place, word)
        self._ends[place] = 1

    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        place = self._first_place(column)
        self._starts[place] = 0
        for word in words:
            if word == HASH:
                self._stays[place] = 0
            else:
                place += COLUMNS_STEP
                self._table.clear_word(place, word)
        self._ends[place] = 0

    def _resize(self, columns: int) -> None:
        bits = columns * self.stride
        self._table.resize(bits)
        for row in (self._starts, self._stays, self._ends):
            fit_row(row, bits)


def stride_of(words: Sequence[str]) -> int:
    """Return the number of places of a pattern, rounded up to 2, 3, 4, 6, 8, 12 and so on, so that tables are few."""
    places = len(words) - words.count(HASH) + 1
    power = 1 << (places - 1).bit_length()
    return power * 3 // 4 if places <= power * 3 // 4 else power


class Candidates:
    """The columns of patterns with several `#`, which decide whether a key must be matched with tables of places.

    In canonical form a literal word follows the first of several `#`. The columns are stored by that word, with their
    strides, and are skipped for a key without the word.
    """

    __slots__ = ("_between", "_row")

    def __init__(self, columns: int) -> None:
        self._row: bitarray = bitarray(columns)
        self._between: dict[str, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._between)

    def extract(self, bits: bitarray, words: Sequence[str]) -> int:
        """Clear the bits of patterns with several `#`, and return the strides of those that may match the key.

        Shapes: bit n of the result stands for stride n.
        """
        left = bits & self._row
        if not left.any():
            return 0
        bits ^= left
        strides = 0
        for word in words:
            columns = self._between.get(word)
            if columns is None:
                continue
            if len(columns) > CANDIDATES_CHECKED_MAX:
                return ALL
            for column, stride in columns.items():
                if left[column]:
                    strides |= 1 << stride
        return strides

    def mark(self, column: int, words: Sequence[str]) -> None:
        """Add the column of a pattern if it has several `#`."""
        if words.count(HASH) > 1:
            self._row[column] = 1
            self._between.setdefault(words[words.index(HASH) + 1], {})[column] = stride_of(words)

    def unmark(self, column: int, words: Sequence[str]) -> None:
        """Undo `mark`."""
        if words.count(HASH) > 1:
            word = words[words.index(HASH) + 1]
            self._row[column] = 0
            columns = self._between[word]
            del columns[column]
            if not columns:
                del self._between[word]

    def resize(self, columns: int) -> None:
        fit_row(self._row, columns)


class CandidateSection(Section[T]):
    """A section in which patterns with several `#` have no targets: those whose columns remain are candidates."""

    __slots__ = ("candidates",)

    def __init__(self, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.candidates = Candidates(self.capacity)

    def find_targets(self, bits: bitarray, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the remaining columns, and return the strides of candidates."""
        if not bits.any():
            return 0
        strides = self.candidates.extract(bits, words) if self.candidates else 0
        targets = self.targets
        for column in bits.search(1):
            target = targets[column]
            if target is not None:
                found.append(target)
        return strides
