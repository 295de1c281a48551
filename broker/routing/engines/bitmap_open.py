"""The tables of the patterns with a `#` for long keys: the words that must come first and last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from bitarray import bitarray

from broker.routing.dialect import TopicDialect
from broker.routing.engines.bitmap_places import Suspects
from broker.routing.engines.bitmap_section import Section
from broker.routing.engines.bitmap_side import Side
from broker.routing.engines.bitmap_table import fit_row
from broker.routing.pattern import HASH

T = TypeVar("T")


class OpenTables(Section[T]):
    """Tables for the words before the first `#`, counted from the left, and after the last, counted from the right.

    `fits[n]` are the columns that a key of n words, or of more, is long enough for: without that, first and last words
    could be the same ones. For a pattern with one `#` this is all there is to know.

    A pattern with several has no target here: being left over it may match.
    """

    __slots__ = ("_sizes", "fits", "head", "suspects", "tail")

    def __init__(self, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.head = Side(self.capacity)
        self.tail = Side(self.capacity)
        self.fits: list[bitarray] = [bitarray(self.capacity)]
        self._sizes: list[int] = [0]
        self.suspects = Suspects(self.capacity)

    def collect(self, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the patterns with one `#` that match, and return the strides of suspects.

        Cost: four rows a word, a bit a column each, and the targets.
        """
        bits = self.head.reach(words)
        if self.tail.tables:
            bits &= self.tail.reach(words[::-1])
        fits = self.fits
        length = len(words)
        bits &= fits[length] if length < len(fits) else fits[-1]
        if not bits.any():
            return 0
        perhaps = self.suspects.acquit(bits, words) if self.suspects else 0
        targets = self.targets
        for column in bits.search(1):
            target = targets[column]
            if target is not None:
                found.append(target)
        return perhaps

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
