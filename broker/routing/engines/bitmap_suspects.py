"""The columns of patterns with several `#`, whose remaining bits are only suspected to match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bitarray import bitarray

from broker.routing.engines.bitmap_places import stride_of
from broker.routing.engines.bitmap_table import fit_row
from broker.routing.pattern import HASH

COMPARED: Final = 8
"""The most columns that are checked one by one; with more, suspecting all costs less."""


ALL: Final = -1


class Suspects:
    """Decides whether to follow the patterns with several `#`, and in which tables of places.

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
        """Give the row this number of columns."""
        fit_row(self._row, columns)
