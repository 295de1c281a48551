"""Listeners: destinations that get copies of an exchange's messages without being bound to it.

A listener has a topic pattern, whatever the type of the exchange. A message that reaches only listeners is still
unroutable. The outlet of an exchange gets the messages for other brokers: it may have many patterns, and its messages
count as routed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

from broker.routing.index import TopicIndex
from broker.routing.pattern import AMQP, PatternLimits, TopicDialect, parse_pattern


class Listeners:
    """The listeners of one exchange, each with one pattern, and the outlet of the exchange, if any.

    Shapes: `patterns` maps each listener to its pattern. The patterns of the `outlet` are in the AMQP dialect.
    Invariant: `present` is set while a listener or the outlet has a pattern.
    Cost: nothing while `present` is not set, else two look-ups in topic indexes for each key.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self._dialect = dialect
        self._index = TopicIndex(dialect=dialect)
        self._outlet_index = TopicIndex()
        self.patterns: dict[Hashable, str] = {}
        self.outlet: Hashable | None = None
        self.present = False

    def add(self, destination: Hashable, key: str, limits: PatternLimits | None = None) -> None:
        """Add a listener with its only pattern. Raises: BindingKeyError."""
        self._index.add(self._dialect.parse(key, limits), destination)
        self.patterns[destination] = key
        self.present = True

    def remove(self, destination: Hashable) -> None:
        """Remove a listener; do nothing if it is not one."""
        key = self.patterns.pop(destination, None)
        if key is not None:
            self._index.remove(self._dialect.parse(key), destination)
            self._update_present()

    def set_outlet(self, outlet: Hashable) -> None:
        """Set the outlet, which has no patterns yet."""
        self.outlet = outlet

    def add_outlet_pattern(self, pattern: str) -> None:
        """Add a pattern of the outlet. Raises: BindingKeyError if it is invalid."""
        self._outlet_index.add(parse_pattern(pattern), self.outlet)
        self.present = True

    def remove_outlet_pattern(self, pattern: str) -> None:
        """Remove a pattern of the outlet. Raises: KeyError if it is missing."""
        self._outlet_index.remove(parse_pattern(pattern), self.outlet)
        self._update_present()

    def match(self, keys: Iterable[str]) -> tuple[Any, ...]:
        """Return the listeners of a message with these routing keys, and the outlet if one of its patterns matches."""
        if not self.present:
            return ()
        indexes = (self._index, self._outlet_index)
        return tuple(dict.fromkeys([found for key in keys for index in indexes for found in index.match(key)]))

    def _update_present(self) -> None:
        self.present = bool(self.patterns) or self._outlet_index.size > 0


NO_LISTENERS: Final = Listeners()
"""The shared value for exchanges without listeners; always empty."""
