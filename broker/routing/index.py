"""The topic index: literal binding keys in a dict, wildcard patterns in an engine behind it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from broker.routing.destinations import Target
from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.tiered import Tiered
from broker.routing.footprint import footprint_bytes
from broker.routing.pattern import Pattern, PatternLimits
from broker.routing.topic_engine import TopicEngine


class TopicIndex:
    """Maps binding keys to destinations, and a routing key to the destinations it reaches.

    Cost: add and remove cost the words of their key, independent of the number of other bindings.
    """

    __slots__ = ("_dialect", "_engine", "_literals", "_wildcards", "limits")

    def __init__(
        self,
        engine: TopicEngine[Target] | None = None,
        limits: PatternLimits | None = None,
        dialect: TopicDialect = AMQP,
    ) -> None:
        self.limits = limits or PatternLimits()
        self._dialect = dialect
        self._engine: TopicEngine[Target] = Tiered(dialect) if engine is None else engine
        self._literals: dict[str, Target] = {}
        self._wildcards = len(self._engine)

    def __len__(self) -> int:
        """Return the number of distinct canonical keys."""
        return len(self._literals) + self._wildcards

    def counts(self) -> Mapping[str, int]:
        """Return the sizes within the engine, the number of literal keys and that of wildcard patterns, by name."""
        return {**self._engine.counts(), "literals": len(self._literals), "wildcards": self._wildcards}

    def footprint_bytes(self) -> int:
        """Return the memory of the index, the destinations left out. Cost: the whole index."""
        return footprint_bytes(self, closed=(Target,))

    def parse(self, key: str) -> Pattern:
        """Return the binding key as a pattern within the limits. Raises: BindingKeyError."""
        return self._dialect.parse(key, self.limits)

    def add(self, pattern: Pattern, destination: Hashable) -> bool:
        """Count one more binding and return whether the destination is new under this pattern."""
        target = self._literals.get(pattern.text) if pattern.literal else self._engine.find(pattern)
        if target is None:
            target = Target()
            if pattern.literal:
                self._literals[pattern.text] = target
            else:
                self._engine.add(pattern, target)
                self._wildcards += 1
        return target.add(destination)

    def remove(self, pattern: Pattern, destination: Hashable) -> bool:
        """Count one binding less and return whether it was the destination's last under this pattern.

        Raises: KeyError if there is no such binding.
        """
        target = self._literals.get(pattern.text) if pattern.literal else self._engine.find(pattern)
        if target is None:
            raise KeyError(pattern.text)
        if not target.remove(destination):
            return False
        if not target.destinations:
            if pattern.literal:
                del self._literals[pattern.text]
            else:
                self._engine.remove(pattern)
                self._wildcards -= 1
        return True

    def match(self, key: str) -> tuple[Any, ...]:
        """Return the destinations of a routing key, each once. Wildcard characters in it are ordinary words."""
        literal = self._literals.get(key)
        if not self._wildcards:
            return () if literal is None else tuple(literal.destinations)
        targets = self._engine.match(key)
        if literal is not None:
            targets.append(literal)
        if not targets:
            return ()
        if len(targets) == 1:
            return tuple(targets[0].destinations)
        merged: list[Any] = []
        for target in targets:
            destinations = target.destinations
            if isinstance(destinations, tuple) and len(destinations) == 1:
                merged.append(destinations[0])
            else:
                merged += destinations
        if len(set(merged)) == len(merged):
            return tuple(merged)
        return tuple(dict.fromkeys(merged))
