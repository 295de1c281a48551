"""The table of one constituent: a row of bits for each word, a column for each pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bitarray import bitarray

from broker.routing.pattern import STAR

FEW_SHARE: Final = 256
"""Up to this share of all columns a word has few: there a list is smaller than a row, and about as fast."""

ONE_BY_ONE: Final = 6
"""The most columns that are checked one by one: fewer than would repay the fixed cost of checking all at once."""


class Table:
    """Tells which columns a word at one place of a key leaves possible, among those with a word there.

    `default` is the row of every word that no pattern has here, the article's `other`: the columns with a star. `dense`
    holds whole rows, the bits of `default` among them; a word that few columns have is in `few`, as their numbers,
    which are 0 in `default`. So adding a word writes only its own row, and adding a star writes the dense rows, of
    which there are at most about FEW_SHARE.

    Invariant: all rows have as many bits as the table has columns; no row is without a column of its own.
    """

    __slots__ = ("_few_most", "_own", "default", "dense", "few")

    def __init__(self, columns: int) -> None:
        self.default: bitarray = bitarray(columns)
        self.dense: dict[str, bitarray] = {}
        self.few: dict[str, list[int]] = {}
        self._own: dict[str, int] = {}
        self._few_most = columns // FEW_SHARE

    def want(self, column: int, word: str) -> None:
        """Let a column accept only this word of a pattern; a star accepts all."""
        if word == STAR:
            self._take_any(column, 1)
            return
        row = self.dense.get(word)
        if row is not None:
            row[column] = 1
            self._own[word] += 1
            return
        few = self.few.setdefault(word, [])
        few.append(column)
        if len(few) > self._few_most:
            self._make_dense(word)

    def unwant(self, column: int, word: str) -> None:
        """Undo `want`."""
        if word == STAR:
            self._take_any(column, 0)
            return
        row = self.dense.get(word)
        if row is not None:
            row[column] = 0
            self._own[word] -= 1
            own = self._own[word]
            if not own or own * 2 < self._few_most:
                self._make_few(word)
            return
        few = self.few[word]
        few.remove(column)
        if not few:
            del self.few[word]

    def resize(self, columns: int) -> None:
        """Give every row this number of bits; removed ones are 0. Cost: the rows."""
        shrinks = columns < len(self.default)
        fit_row(self.default, columns)
        for row in self.dense.values():
            fit_row(row, columns)
        self._few_most = columns // FEW_SHARE
        for word in [word for word, own in self._own.items() if own * 2 < self._few_most]:
            self._make_few(word)
        if shrinks:
            for word in [word for word, few in self.few.items() if len(few) > self._few_most]:
                self._make_dense(word)
            self.few = dict(self.few)  # gives back the places of words that have gone

    def row(self, word: str) -> bitarray:
        """Return a new row of the columns that accept the word of a key."""
        row = self.dense.get(word)
        if row is not None:
            return row.copy()
        row = self.default.copy()
        few = self.few.get(word)
        if few is not None:
            row[few] = 1
        return row

    def counts(self) -> Mapping[str, int]:
        """Return how many words have a row of bits, and how many a list of columns."""
        return {"rows": len(self.dense), "lists": len(self.few)}

    def _take_any(self, column: int, bit: int) -> None:
        self.default[column] = bit
        for row in self.dense.values():
            row[column] = bit

    def _make_dense(self, word: str) -> None:
        few = self.few.pop(word)
        row = self.default.copy()
        row[few] = 1
        self.dense[word] = row
        self._own[word] = len(few)

    def _make_few(self, word: str) -> None:
        row = self.dense.pop(word)
        row ^= self.default
        few = list(row.search(1))
        if self._own.pop(word):
            self.few[word] = few


def fit_row(row: bitarray, columns: int) -> None:
    """Give a row this number of bits; new ones are 0."""
    if columns < len(row):
        del row[columns:]
    else:
        row.extend(bitarray(columns - len(row)))


def narrow_few(bits: bitarray, few: list[int], default: bitarray) -> None:
    """Keep only the bits of the default and of the given few columns that are not in it."""
    if len(few) > ONE_BY_ONE:
        some = bits[few]
        bits &= default
        if some.any():
            bits[few] = some
        return
    kept = [column for column in few if bits[column]]
    bits &= default
    for column in kept:
        bits[column] = 1
