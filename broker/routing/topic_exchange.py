"""The topic exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.routing.binding import Binding
from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.exchange import KeyedExchange
from broker.routing.index import TopicIndex, matching_keys
from broker.routing.pattern import Pattern, PatternLimits

COMPARED_KEYS: Final = 1024
"""Of how many cached keys at most a changed pattern is compared with each word; of more, all are given up."""


class TopicExchange(KeyedExchange):
    """Leads a message to the destinations bound with a pattern that matches its routing key."""

    type = "topic"

    def __init__(
        self,
        name: str,
        *,
        dialect: TopicDialect = AMQP,
        pattern_limits: PatternLimits | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(name, **settings)
        self._dialect = dialect
        self._index = TopicIndex(limits=pattern_limits, dialect=dialect)

    def check_key(self, key: str, limits: PatternLimits) -> None:
        """Check a binding key against the dialect and the limits. Raises: BindingKeyError."""
        self._dialect.parse(key, limits)

    def _attach(self, binding: Binding) -> None:
        pattern = self._index.parse(binding.key)
        if self._index.add(pattern, binding.destination):
            self._invalidate(pattern)

    def _detach(self, binding: Binding) -> None:
        pattern = self._dialect.parse(binding.key)
        if self._index.remove(pattern, binding.destination):
            self._invalidate(pattern)

    def _resolve(self, key: str) -> tuple[Any, ...]:
        return self._index.match(key)

    def _invalidate(self, pattern: Pattern) -> None:
        if pattern.literal:
            self.cache.drop(pattern.text)
            return

        def touched(keys: Sequence[str]) -> Sequence[str]:
            start, end = self._dialect.edges(pattern)
            candidates = [key for key in keys if key.startswith(start) and key.endswith(end)]
            if len(candidates) > COMPARED_KEYS:
                return candidates
            return matching_keys(pattern, candidates, self._dialect)

        self.cache.drop_where(touched)
