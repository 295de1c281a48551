"""The topic index: literal binding keys in a dict, wildcard patterns in an engine behind it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar

from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.pattern import Pattern, PatternLimits
from broker.routing.trie import Trie

T = TypeVar("T")


class TopicEngine(Protocol[T]):
    """What matches wildcard patterns: it knows each distinct canonical pattern once, and one target for it."""

    def add(self, words: Sequence[str], target: T) -> None:
        """Store the target of one canonical pattern that is not there yet."""

    def remove(self, words: Sequence[str]) -> None:
        """Forget one canonical pattern; KeyError if it is not there."""

    def match(self, words: Sequence[str]) -> list[T]:
        """Return the targets of all patterns that match; the same target may come more than once."""

    def __len__(self) -> int:
        """Return the number of patterns."""


class TopicIndex:
    """Maps binding keys to destinations, and a routing key to the destinations it reaches.

    Cost: add and remove cost the words of their key, whatever else is bound, by however many destinations.
    """

    __slots__ = ("_dialect", "_engine", "_literals", "_patterns", "limits")

    def __init__(
        self,
        engine: TopicEngine[Destinations] | None = None,
        limits: PatternLimits | None = None,
        dialect: TopicDialect = AMQP,
    ) -> None:
        self.limits = limits or PatternLimits()
        self._dialect = dialect
        self._engine: TopicEngine[Destinations] = Trie() if engine is None else engine
        self._literals: dict[str, Destinations] = {}
        self._patterns: dict[str, Destinations] = {}

    def __len__(self) -> int:
        """Return the number of distinct canonical keys."""
        return len(self._literals) + len(self._patterns)

    def parse(self, key: str) -> Pattern:
        """Return the binding key as a pattern within the limits. Raises: BindingKeyError."""
        return self._dialect.parse(key, self.limits)

    def add(self, pattern: Pattern, destination: Hashable) -> bool:
        """Count one more binding and return whether the destination is new under this pattern."""
        table = self._literals if pattern.literal else self._patterns
        destinations = table.get(pattern.text)
        if destinations is None:
            table[pattern.text] = destinations = {destination: 1}
            if not pattern.literal:
                self._engine.add(pattern.words, destinations)
            return True
        return count_up(destinations, destination)

    def remove(self, pattern: Pattern, destination: Hashable) -> bool:
        """Count one binding less and return whether it was the destination's last under this pattern.

        Raises: KeyError if there is no such binding.
        """
        table = self._literals if pattern.literal else self._patterns
        destinations = table[pattern.text]
        if not count_down(destinations, destination):
            return False
        if not destinations:
            del table[pattern.text]
            if not pattern.literal:
                self._engine.remove(pattern.words)
        return True

    def match(self, key: str) -> tuple[Any, ...]:
        """Return the destinations of a routing key, each once. Wildcard characters in it are ordinary words."""
        literal = self._literals.get(key)
        if not self._patterns:
            return () if literal is None else tuple(literal)
        targets = self._engine.match(self._dialect.words(key))
        if literal is not None:
            targets.append(literal)
        if len(targets) == 1:
            return tuple(targets[0])
        merged: Destinations = {}
        for target in targets:
            merged |= target
        return tuple(merged)


def matching_keys(pattern: Pattern, keys: Sequence[str], dialect: TopicDialect) -> list[str]:
    """Return those of the routing keys that one wildcard pattern matches."""
    engine: TopicEngine[bool] = Trie()
    engine.add(pattern.words, True)
    return [key for key in keys if engine.match(dialect.words(key))]
