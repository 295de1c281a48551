"""The topic index: literal binding keys in a dict, wildcard patterns in an engine behind it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.trie import Trie
from broker.routing.pattern import Pattern, PatternLimits
from broker.routing.topic_engine import TopicEngine


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
        self._engine: TopicEngine[Destinations] = Trie(dialect) if engine is None else engine
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
                self._engine.add(pattern, destinations)
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
                self._engine.remove(pattern)
        return True

    def match(self, key: str) -> tuple[Any, ...]:
        """Return the destinations of a routing key, each once. Wildcard characters in it are ordinary words."""
        literal = self._literals.get(key)
        if not self._patterns:
            return () if literal is None else tuple(literal)
        targets = self._engine.match(key)
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
    engine: TopicEngine[bool] = Trie(dialect)
    engine.add(pattern, True)
    return [key for key in keys if engine.match(key)]
