"""The patterns with several `#`, all of them walked at once along a key, or only suspected to match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from bitarray import bitarray

from broker.routing.engines.bitmap_table import COLUMNS_STEP, Section, Table, fit_row
from broker.routing.pattern import HASH, TopicDialect

T = TypeVar("T")
COMPARED: Final = 8
"""The most columns that are checked one by one; with more, suspecting all costs less."""


ALL: Final = -1


class PlaceTable(Section[T]):
    """Rows whose bits are the places between the words of the patterns, `stride` places for each pattern.

    The bit of a place is set when the words of the key so far can have led there. A word moves all bits one place
    forward and keeps those that accept it; at a `#` the bit also stays. So all patterns, and all ways through each, are
    followed by the same few operations on rows, however hostile they are. For 64 patterns, the first places come first,
    then the second ones: moving by one place is a shift by 64 bits, which just moves memory. The last places move into
    the first ones of the next 64, which no word leads to.

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
        """Append the targets of the patterns that match. Cost: two rows per word with a bit per place; the targets."""
        reached = self._starts.copy()
        stays = self._stays
        table = self._table
        for word in words:
            stayed = reached & stays
            reached >>= COLUMNS_STEP  # bits are numbered from the left: one place on
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
        """Return the number of rows and lists."""
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
                self._table.want(place, word)
        self._ends[place] = 1

    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        place = self._first_place(column)
        self._starts[place] = 0
        for word in words:
            if word == HASH:
                self._stays[place] = 0
            else:
                place += COLUMNS_STEP
                self._table.unwant(place, word)
        self._ends[place] = 0

    def _resize(self, columns: int) -> None:
        bits = columns * self.stride
        self._table.resize(bits)
        for row in (self._starts, self._stays, self._ends):
            fit_row(row, bits)


def stride_of(words: Sequence[str]) -> int:
    """Return the places of a pattern, rounded up to 2, 3, 4, 6, 8, 12 and so on: few sizes, so few tables."""
    places = len(words) - words.count(HASH) + 1
    power = 1 << (places - 1).bit_length()
    return power * 3 // 4 if places <= power * 3 // 4 else power


class Suspects:
    """Decide whether to follow the patterns with several `#`, and in which tables of places.

    In canonical form a word that is not a wildcard comes right after the first `#`. The columns are kept by that word,
    with the stride of their places, and a key without it skips them.
    """

    __slots__ = ("_between", "_row")

    def __init__(self, columns: int) -> None:
        self._row: bitarray = bitarray(columns)
        self._between: dict[str, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._between)

    def acquit(self, bits: bitarray, words: Sequence[str]) -> int:
        """Remove the suspects from the remaining bits, and return the strides of those that may match the key.

        Shapes: bit n of the result is stride n.
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
            if len(columns) > COMPARED:
                return ALL
            for column, stride in columns.items():
                if left[column]:
                    strides |= 1 << stride
        return strides

    def mark(self, column: int, words: Sequence[str]) -> None:
        """Suspect the column of a pattern if it has several `#`."""
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
        """Resize the row to this number of columns."""
        fit_row(self._row, columns)


class SuspectSection(Section[T]):
    """A section in which the patterns with several `#` have no targets: what is left of them may match."""

    __slots__ = ("suspects",)

    def __init__(self, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.suspects = Suspects(self.capacity)

    def find_targets(self, bits: bitarray, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the columns that a key leaves, and return the strides of suspects."""
        if not bits.any():
            return 0
        perhaps = self.suspects.acquit(bits, words) if self.suspects else 0
        targets = self.targets
        for column in bits.search(1):
            target = targets[column]
            if target is not None:
                found.append(target)
        return perhaps
