"""Listeners: destinations that get a copy of the messages of an exchange without being bound to it.

A listener has a topic pattern, whatever the type of the exchange. A message that reaches only listeners is still
unroutable.
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
        """Add a listener with its only pattern. Raises: BindingKeyError."""
        self._index.add(self._dialect.parse(key, limits), destination)
        self.patterns[destination] = key

    def remove(self, destination: Hashable) -> None:
        """Remove a listener, if it is one."""
        key = self.patterns.pop(destination, None)
        if key is not None:
            self._index.remove(self._dialect.parse(key), destination)

    def match(self, keys: Iterable[str]) -> tuple[Any, ...]:
        """Return the listeners of a message with these routing keys, each once."""
        if not self.patterns:
            return ()
        return tuple(dict.fromkeys(listener for key in keys for listener in self._index.match(key)))


NOBODY: Final = Listeners()
"""The listeners of every exchange that has none; always empty."""
