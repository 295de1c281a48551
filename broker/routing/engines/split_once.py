"""Conventional topic matching, improved: nothing is split twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.conventional import words_match
from broker.routing.pattern import Pattern

T = TypeVar("T")


class SplitOnce(Generic[T]):
    """Maps patterns, split into words when they are added, to targets; a key is split once per match.

    Cost: a match costs all patterns, whatever the key; add and remove cost one look-up. `visited` counts patterns.

    Source: "Very fast and scalable topic routing", part 1, RabbitMQ, 2010: three times the speed "just by being more
    careful when splitting the keys into words".
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._dialect = dialect
        self._patterns: dict[tuple[str, ...], T] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def counts(self) -> Mapping[str, int]:
        """Return the number of patterns."""
        return {"patterns": len(self._patterns)}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already."""
        known = self._patterns.get(pattern.words)
        if known is None:
            self._patterns[pattern.words] = target
        return known

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        return self._patterns.get(pattern.words)

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is not there."""
        target = self._patterns.pop(pattern.words)
        if not self._patterns:
            self._patterns.clear()  # a dict keeps its size when keys are deleted
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match. Cost: all patterns."""
        return self.match_words(self._dialect.words(key))

    def match_words(self, words: Sequence[str]) -> list[T]:
        """Return the targets of the patterns that match a routing key of these words. Cost: all patterns."""
        self.visited += len(self._patterns)
        return [target for pattern, target in self._patterns.items() if words_match(pattern, words)]
