"""The tables for the keys of one number of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from broker.routing.dialect import TopicDialect
from broker.routing.engines.bitmap_section import Section
from broker.routing.engines.bitmap_side import Side
from broker.routing.engines.bitmap_suspects import Suspects
from broker.routing.pattern import HASH, STAR

T = TypeVar("T")


class ClosedTables(Section[T]):
    """One table for each word, only for keys of this number of words.

    Keys of another length have tables of their own, so no row has to say where a pattern ends: the article's `null` of
    a place is every column of a shorter pattern. A pattern with a `#` is expanded for this length: the words before its
    first `#`, as many stars as needed, and the words after its last.
    """

    __slots__ = ("length", "side", "suspects")

    def __init__(self, length: int, dialect: TopicDialect) -> None:
        super().__init__(dialect)
        self.length = length
        self.side = Side(self.capacity)
        self.suspects = Suspects(self.capacity)

    def collect(self, words: Sequence[str], found: list[T]) -> int:
        """Append the targets of the patterns that match, and return the strides of suspects.

        Cost: a row a word, and one more where `#` end; a bit a column each; and the targets.
        """
        bits = self.side.reach(words)
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
        return self.side.counts()

    def _mark(self, column: int, words: tuple[str, ...]) -> None:
        self.side.want(column, self._closed_words(words))
        self.suspects.mark(column, words)

    def _unmark(self, column: int, words: tuple[str, ...]) -> None:
        self.side.unwant(column, self._closed_words(words))
        self.suspects.unmark(column, words)

    def _resize(self, columns: int) -> None:
        self.side.resize(columns)
        self.suspects.resize(columns)

    def _closed_words(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words that a pattern requires in a key of this length; after them it accepts any words."""
        if HASH not in words:
            return words
        first_hash = words.index(HASH)
        head = words[:first_hash]
        backwards = words[::-1]
        tail_length = backwards.index(HASH)
        if not tail_length:
            return head
        return head + (STAR,) * (self.length - len(head) - tail_length) + words[-tail_length:]
