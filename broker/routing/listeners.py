"""Listeners: destinations that hear what passes an exchange, beside its bindings.

A listener has a topic pattern whatever the type of the exchange, and counts for nobody: a message that reached nothing
else is still one that led nowhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.index import TopicIndex
from broker.routing.pattern import PatternLimits


class Listeners:
    """Holds the listeners of one exchange, each with one pattern.

    Cost: nothing while there are none; then one match of the topic index for each route that is resolved.
    """

    __slots__ = ("_dialect", "_index", "patterns")

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self._dialect = dialect
        self._index = TopicIndex(dialect=dialect)
        self.patterns: dict[Hashable, str] = {}

    def add(self, destination: Hashable, key: str, limits: PatternLimits | None = None) -> None:
        """Let a destination hear what a pattern matches; it has no other yet. Raises: BindingKeyError."""
        self._index.add(self._dialect.parse(key, limits), destination)
        self.patterns[destination] = key

    def remove(self, destination: Hashable) -> None:
        """Let a destination hear nothing any more; one that heard nothing is well."""
        key = self.patterns.pop(destination, None)
        if key is not None:
            self._index.remove(self._dialect.parse(key), destination)

    def match(self, keys: Iterable[str]) -> tuple[Any, ...]:
        """Return who hears a message with these routing keys, each once."""
        if not self.patterns:
            return ()
        return tuple(dict.fromkeys(listener for key in keys for listener in self._index.match(key)))


NOBODY: Final = Listeners()
"""Stands for the listeners of every exchange that has none; nobody is ever added to it."""
