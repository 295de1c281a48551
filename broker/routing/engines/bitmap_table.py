"""A table for one word position, with a row of bits for each word, and a section, which assigns columns to patterns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from bitarray import bitarray

from broker.routing.pattern import STAR, TopicDialect

LIST_SHARE: Final = 256
"""A word of at most one in this many columns has a list of them, which is smaller than a row and about as fast."""

COLUMNS_CHECKED_MAX: Final = 6
"""The most columns that are checked one by one; for more, the fixed cost of one operation on all pays off."""

COLUMNS_STEP: Final = 64
MOVES: Final = 2
"""Columns that one removal may move; with only one, deleted positions would never become fewer."""
T = TypeVar("T")


class Table:
    """The columns that accept each word at one position of a key.

    `default` is the row for every word that no pattern has here: the columns with a star. `dense` maps each common word
    to a whole row, which includes the bits of `default`. `few` maps each rare word to its column numbers; their bits
    are 0 in `default`. So adding a word writes only its own row, and adding a star writes the dense rows, of which
    there are at most about LIST_SHARE.

    Invariant: all rows have as many bits as the table has columns; each dense row has a column of its own word.
    """

    __slots__ = ("_few_max", "_own", "default", "dense", "few")

    def __init__(self, columns: int) -> None:
        self.default: bitarray = bitarray(columns)
        self.dense: dict[str, bitarray] = {}
        self.few: dict[str, list[int]] = {}
        self._own: dict[str, int] = {}
        self._few_max = columns // LIST_SHARE

    def set_word(self, column: int, word: str) -> None:
        """Make a column accept only this word, or every word if it is a star."""
        if word == STAR:
            self._set_star(column, 1)
            return
        row = self.dense.get(word)
        if row is not None:
            row[column] = 1
            self._own[word] += 1
            return
        few = self.few.setdefault(word, [])
        few.append(column)
        if len(few) > self._few_max:
            self._make_dense(word)

    def clear_word(self, column: int, word: str) -> None:
        """Undo `set_word`."""
        if word == STAR:
            self._set_star(column, 0)
            return
        row = self.dense.get(word)
        if row is not None:
            row[column] = 0
            self._own[word] -= 1
            own = self._own[word]
            if not own or own * 2 < self._few_max:
                self._make_few(word)
            return
        few = self.few[word]
        few.remove(column)
        if not few:
            del self.few[word]

    def resize(self, columns: int) -> None:
        """Resize every row to this number of bits; the removed bits must be 0. Cost: the rows."""
        shrinks = columns < len(self.default)
        fit_row(self.default, columns)
        for row in self.dense.values():
            fit_row(row, columns)
        self._few_max = columns // LIST_SHARE
        for word in [word for word, own in self._own.items() if own * 2 < self._few_max]:
            self._make_few(word)
        if shrinks:
            for word in [word for word, few in self.few.items() if len(few) > self._few_max]:
                self._make_dense(word)
            self.few = dict(self.few)  # frees the slots of removed words

    def counts(self) -> Mapping[str, int]:
        """Return the number of words with a row of bits, and of those with a list of columns."""
        return {"rows": len(self.dense), "lists": len(self.few)}

    def narrow(self, bits: bitarray, word: str) -> None:
        """Keep only the columns that accept a word. HOT."""
        row = self.dense.get(word)
        if row is None:
            few = self.few.get(word)
            if few is None:
                row = self.default
            elif len(few) > COLUMNS_CHECKED_MAX:
                kept_bits = bits[few]
                bits &= self.default
                if kept_bits.any():
                    bits[few] = kept_bits
                return
            else:
                kept = [column for column in few if bits[column]]
                bits &= self.default
                for column in kept:
                    bits[column] = 1
                return
        bits &= row

    def _set_star(self, column: int, bit: int) -> None:
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
    """Resize a row to this number of bits; new bits are 0."""
    if columns < len(row):
        del row[columns:]
    else:
        row.extend(bitarray(columns - len(row)))


class Section(Generic[T]):
    """A set of patterns with a column each, whose bits subclasses set and clear.

    A removed pattern leaves a deleted position, which a later pattern reuses. When more than half of the positions are
    deleted, a removal moves up to two of the last columns into deleted positions, so that rows can become shorter.

    Invariant: the bits of a deleted position are 0 in every row.
    """

    __slots__ = ("_deleted", "_dialect", "_positions", "_texts", "capacity", "targets")

    def __init__(self, dialect: TopicDialect) -> None:
        self._dialect = dialect
        self._positions: dict[str, int] = {}
        self._texts: list[str | None] = []
        self._deleted: dict[int, None] = {}
        self.targets: list[T | None] = []
        self.capacity = COLUMNS_STEP

    @property
    def size(self) -> int:
        return len(self._positions)

    def find(self, text: str) -> T | None:
        """Return the target of a pattern, or None if the pattern is missing or its target is in another section."""
        column = self._positions.get(text)
        return None if column is None else self.targets[column]

    def width(self) -> int:
        """Return the number of positions, including deleted ones."""
        return len(self._texts)

    def add(self, text: str, words: tuple[str, ...], target: T | None) -> None:
        """Assign a column to a new pattern."""
        assert text not in self._positions
        if self._deleted:
            column = self._deleted.popitem()[0]
        else:
            column = len(self._texts)
            self._texts.append(None)
            self.targets.append(None)
            if column == self.capacity:
                self._fit(column + column // 4 + 1)
        self._take(column, text, words, target)

    def remove(self, text: str, words: tuple[str, ...]) -> T | None:
        """Remove a pattern and return its target. Raises: KeyError if it is missing."""
        column = self._positions.pop(text)
        target = self.targets[column]
        self._unmark(column, words)
        self._texts[column] = None
        self.targets[column] = None
        self._deleted[column] = None
        if len(self._deleted) * 2 > len(self._texts):
            self._move_last()
        if len(self._texts) * 4 + COLUMNS_STEP < self.capacity:
            self._fit(len(self._texts) * 5 // 4)
            self._positions = dict(self._positions)  # frees the slots of removed texts
        return target

    def _move_last(self) -> None:
        """Move up to MOVES of the last columns into deleted positions while more than half of them are deleted."""
        self._drop_last_deleted()
        for _ in range(MOVES):
            if len(self._deleted) * 2 <= len(self._texts):
                return
            text = self._texts.pop()
            target = self.targets.pop()
            assert text is not None
            words = self._dialect.parse(text).words
            self._unmark(len(self._texts), words)
            self._take(self._deleted.popitem()[0], text, words, target)
            self._drop_last_deleted()

    def _drop_last_deleted(self) -> None:
        while self._texts and self._texts[-1] is None:
            self._texts.pop()
            self.targets.pop()
            del self._deleted[len(self._texts)]

    def _take(self, column: int, text: str, words: tuple[str, ...], target: T | None) -> None:
        self._texts[column] = text
        self.targets[column] = target
        self._positions[text] = column
        self._mark(column, words)

    def _fit(self, columns: int) -> None:
        self.capacity = -(-columns // COLUMNS_STEP) * COLUMNS_STEP
        self._resize(self.capacity)

    @abstractmethod
    def _mark(self, column: int, words: tuple[str, ...]) -> None:
        """Set the bits of a pattern's column."""

    @abstractmethod
    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        """Clear the bits of a pattern's column."""

    @abstractmethod
    def _resize(self, columns: int) -> None:
        """Resize every row to this number of columns; the removed columns are deleted positions."""
