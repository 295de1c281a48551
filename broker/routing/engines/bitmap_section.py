"""The columns of patterns that share their tables: numbered, found by their text, deleted positions used again."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Generic, TypeVar

from broker.routing.dialect import TopicDialect

T = TypeVar("T")

COLUMNS_STEP: Final = 64
MOVES: Final = 2
"""Columns that one removal may move; with one alone, to move would never get ahead of the removals."""


class Section(Generic[T]):
    """Gives each of its patterns a column, and tells those who keep the bits of it which of them to set.

    A removed pattern leaves a deleted position, which the next one takes. When more than half are deleted, a removal
    moves up to two of the last columns into deleted positions, so that rows become shorter and no removal scans them.

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

    def __len__(self) -> int:
        return len(self._positions)

    def find(self, text: str) -> T | None:
        """Return the target of a pattern, or None if it is not there or has none here."""
        column = self._positions.get(text)
        return None if column is None else self.targets[column]

    def texts(self) -> list[str | None]:
        """Return the pattern of each column, or None where it is deleted."""
        return list(self._texts)

    def width(self) -> int:
        """Return the number of columns, deleted positions among them."""
        return len(self._texts)

    def add(self, text: str, words: tuple[str, ...], target: T | None) -> None:
        """Give a pattern that is not there yet a column. Cost: the words of the pattern."""
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
        """Forget a pattern and return its target. Cost: its words. Raises: KeyError if it is not there."""
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
            self._positions = dict(self._positions)  # gives back the places of texts that have gone
        return target

    def _move_last(self) -> None:
        """Move the last columns into deleted positions before them, until no more than half are deleted."""
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
        """Give every row this number of columns; those that go are deleted ones."""
