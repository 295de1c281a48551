"""Patterns indexed word by word before any message comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.split_once import SplitOnce
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")

NONE: Final[set[int]] = set()  # never added to


class Length:
    """The index of the patterns of one number of words: per level, under each of its words, their numbers.

    Stars have a row of their own. A message whose word is `*` finds that row twice, which changes nothing.
    """

    __slots__ = ("patterns", "rows")

    def __init__(self, levels: int) -> None:
        self.patterns = 0
        self.rows: list[dict[str, set[int]]] = [{} for _ in range(levels)]

    def add(self, number: int, words: Sequence[str]) -> None:
        """Put the number of a pattern into the rows of its words."""
        self.patterns += 1
        for row, word in zip(self.rows, words, strict=True):
            numbers = row.get(word)
            if numbers is None:
                row[word] = {number}
            else:
                numbers.add(number)

    def remove(self, number: int, words: Sequence[str]) -> None:
        """Remove the number of a pattern, and the rows that it leaves empty."""
        self.patterns -= 1
        for row, word in zip(self.rows, words, strict=True):
            numbers = row[word]
            numbers.remove(number)
            if not numbers:
                del row[word]


class PatternWords(Generic[T]):
    """Maps patterns to targets; the sets of patterns that fit at each level are intersected.

    At each level a message fits the patterns with its word there and those with a star. What fits at all levels
    matches. There is no level for a `#`, which moves all levels after it: patterns with one stay in a linear residue,
    and so does the empty pattern, which has no level.

    Cost: a match costs the residue and, for each word, the patterns that fit the message's rarest word; with many stars
    that grows with all patterns. Add and remove cost the pattern's words.
    `visited` counts patterns: in a set that is intersected with a level, or in the residue.

    Source: "Very fast and scalable topic routing", part 1, RabbitMQ, 2010, approach 2.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._dialect = dialect
        self._next = 0
        self._numbers: dict[tuple[str, ...], int] = {}
        self._targets: dict[int, T] = {}
        self._lengths: dict[int, Length] = {}
        self._residue: SplitOnce[T] = SplitOnce(dialect)

    def __len__(self) -> int:
        return len(self._numbers) + len(self._residue)

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of patterns in the index and outside, and of words in the index."""
        return {
            "patterns": len(self._numbers),
            "residue": len(self._residue),
            "words": sum(len(row) for length in self._lengths.values() for row in length.rows),
        }

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already. Cost: the words of the pattern."""
        words = pattern.words
        if not words or HASH in words:
            return self._residue.add(pattern, target)
        number = self._numbers.get(words)
        if number is not None:
            return self._targets[number]
        number = self._next
        self._next += 1
        self._numbers[words] = number
        self._targets[number] = target
        length = self._lengths.get(len(words))
        if length is None:
            self._lengths[len(words)] = length = Length(len(words))
        length.add(number, words)
        return None

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        number = self._numbers.get(pattern.words)
        return self._residue.find(pattern) if number is None else self._targets[number]

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is not there. Cost: the pattern's words."""
        words = pattern.words
        number = self._numbers.get(words)
        if number is None:
            return self._residue.remove(pattern)
        length = self._lengths[len(words)]
        length.remove(number, words)
        if not length.patterns:
            del self._lengths[len(words)]
        del self._numbers[words]
        target = self._targets.pop(number)
        if not self._numbers:
            self._numbers.clear()  # a dict keeps its size when keys are deleted
            self._targets.clear()
            self._lengths.clear()
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match."""
        words = self._dialect.words(key)
        found = self._residue.match_words(words)
        self.visited += len(self._residue)
        length = self._lengths.get(len(words))
        if length is None:
            return found
        levels: list[tuple[int, int, set[int], set[int]]] = []
        for level, word in enumerate(words):
            rows = length.rows[level]
            fits, stars = rows.get(word, NONE), rows.get(STAR, NONE)
            size = len(fits) + len(stars)
            if size == 0:
                return found
            levels.append((size, level, fits, stars))
        levels.sort()  # by size; no two have the same level, so sets are not compared
        _, _, fits, stars = levels[0]
        common = fits | stars
        for _, _, fits, stars in levels[1:]:
            self.visited += len(common)
            common = (common & fits) | (common & stars)
        for number in common:
            found.append(self._targets[number])
        return found
