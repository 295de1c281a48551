"""Listeners: destinations that get a copy of the messages of an exchange without being bound to it.

A listener has a topic pattern, whatever the type of the exchange. A message that reaches only listeners is still
unroutable. The outlet of an exchange gets the messages that other brokers want: it has many patterns, and its messages
count as routed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

from broker.routing.index import TopicIndex
from broker.routing.pattern import AMQP, PatternLimits, TopicDialect, parse_pattern


class Listeners:
    """Hold the listeners of one exchange, each with one pattern, and the outlet of the exchange, if any.

    Shapes: ``patterns`` has those of the listeners. The patterns of the ``outlet`` are of the AMQP dialect.
    Invariant: ``present`` is set while there is a pattern.
    Cost: nothing while there is none; then one match of the topic index for each route that is resolved.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self._dialect = dialect
        self._index = TopicIndex(dialect=dialect)
        self._wanted = TopicIndex()
        self.patterns: dict[Hashable, str] = {}
        self.outlet: Hashable | None = None
        self.present = False

    def add(self, destination: Hashable, key: str, limits: PatternLimits | None = None) -> None:
        """Add a listener with its only pattern. Raises: BindingKeyError."""
        self._index.add(self._dialect.parse(key, limits), destination)
        self.patterns[destination] = key
        self.present = True

    def remove(self, destination: Hashable) -> None:
        """Remove a listener, if it is one."""
        key = self.patterns.pop(destination, None)
        if key is not None:
            self._index.remove(self._dialect.parse(key), destination)
            self._count()

    def open(self, outlet: Hashable) -> None:
        """Set the outlet, which gets nothing yet."""
        self.outlet = outlet

    def want(self, pattern: str) -> None:
        """Add a pattern of the outlet. Raises: BindingKeyError if it is invalid."""
        self._wanted.add(parse_pattern(pattern), self.outlet)
        self.present = True

    def unwant(self, pattern: str) -> None:
        """Remove a pattern of the outlet. Raises: KeyError if it is missing."""
        self._wanted.remove(parse_pattern(pattern), self.outlet)
        self._count()

    def match(self, keys: Iterable[str]) -> tuple[Any, ...]:
        """Return the listeners of a message with these routing keys, and the outlet if it takes it, each once."""
        if not self.present:
            return ()
        found = [listener for key in keys for index in (self._index, self._wanted) for listener in index.match(key)]
        return tuple(dict.fromkeys(found))

    def _count(self) -> None:
        self.present = bool(self.patterns) or self._wanted.size > 0


NOBODY: Final = Listeners()
"""The listeners of every exchange that has none; always empty."""
