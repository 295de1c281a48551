"""The topic exchange."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from broker.routing.bundle import Arguments
from broker.routing.cache import CacheLimits
from broker.routing.exchange import BARE, ExchangeProperties, KeyedExchange, MessageFields
from broker.routing.index import AUTO, DEFAULT, ENGINES, TopicIndex
from broker.routing.pattern import AMQP, PatternLimits, TopicDialect, words_match


class TopicExchange(KeyedExchange):
    """An exchange that routes a message to the destinations bound with a pattern that matches its routing key."""

    type = "topic"
    by_topic = True

    def __init__(
        self,
        name: str,
        properties: ExchangeProperties = BARE,
        cache_limits: CacheLimits | None = None,
        pattern_limits: PatternLimits | None = None,
        dialect: TopicDialect = AMQP,
        index: str = AUTO,
    ) -> None:
        super().__init__(name, properties, cache_limits)
        self.dialect = dialect
        self.kind_of_patterns = "topic" if dialect is AMQP else ""
        engine = self.index_name = DEFAULT if index == AUTO else index
        self._index = TopicIndex(ENGINES[engine](dialect), limits=pattern_limits, dialect=dialect)

    def matches(self, key: str, arguments: Arguments, keys: Sequence[str], fields: MessageFields) -> bool:
        pattern = self.dialect.parse(key).words
        return any(words_match(pattern, self.dialect.words(one)) for one in keys)

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        pattern = self.dialect.parse(key, self._index.limits if limits is None else limits)
        if self._index.add(pattern, destination):
            self._end_routes_of(pattern)

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        pattern = self.dialect.parse(key)
        if self._index.remove(pattern, destination) and destination not in self._unrouted:
            self._end_routes_of(pattern)

    def _resolve(self, key: str) -> tuple[Any, ...]:
        return self._index.match(key)
