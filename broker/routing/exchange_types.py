"""The types of exchanges, and the creation of an exchange from a declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.routing.cache import CacheLimits
from broker.routing.choosing_exchanges import HashExchange, LocalRandomExchange, ModulusExchange, RandomExchange
from broker.routing.direct_exchange import DirectExchange
from broker.routing.exchange import Exchange, ExchangeProperties
from broker.routing.fanout_exchange import DeduplicationExchange, FanoutExchange, HistoryExchange
from broker.routing.headers_exchange import HeadersExchange
from broker.routing.index import AUTO, CHOICES
from broker.routing.pattern import AMQP, DIALECTS, PatternLimits, TopicDialect
from broker.routing.topic_exchange import TopicExchange

DELAYED_TYPE: Final = "x-delayed-message"
EXCHANGE_TYPES: Final = (
    "direct", "fanout", "topic", "headers",
    "x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random",
    "x-recent-history", "x-message-deduplication", DELAYED_TYPE,
)  # fmt: skip
PREDECLARED: Final[Mapping[str, str]] = {  # AMQP 0-9-1, 3.1.3.1 and rabbit_vhost; without the default exchange
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}
_CACHED_TYPES: Final[dict[str, Callable[..., Exchange]]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "x-consistent-hash": HashExchange,
    "x-modulus-hash": ModulusExchange,
}
_UNCACHED_TYPES: Final[dict[str, Callable[..., Exchange]]] = {
    "headers": HeadersExchange,
    "x-random": RandomExchange,
    "x-local-random": LocalRandomExchange,
    "x-recent-history": HistoryExchange,
    "x-message-deduplication": DeduplicationExchange,
}


class ExchangeArgumentError(ValueError):
    """An unknown exchange type, or an argument that an exchange of the type cannot have."""


def make_exchange(
    name: str,
    type: str,
    *,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Mapping[str, Any] | None = None,
    cache_limits: CacheLimits | None = None,
    pattern_limits: PatternLimits | None = None,
    topic_index: str = AUTO,
) -> Exchange:
    """Return a new exchange; the limits and `topic_index`, the default index, apply to some types only.

    Raises: ExchangeArgumentError, a ValueError.
    """
    properties = ExchangeProperties(durable, auto_delete, internal, arguments)
    arguments = arguments or {}
    exchange: Exchange
    routing_type = _routing_type(arguments) if type == DELAYED_TYPE else type
    try:
        if routing_type == "topic":
            dialect, index = _dialect(arguments), _topic_index(arguments, topic_index)
            exchange = TopicExchange(name, properties, cache_limits, pattern_limits, dialect, index)
        elif routing_type in _CACHED_TYPES:
            exchange = _CACHED_TYPES[routing_type](name, properties, cache_limits)
        elif routing_type in _UNCACHED_TYPES:
            exchange = _UNCACHED_TYPES[routing_type](name, properties)
        else:
            raise ExchangeArgumentError(f"unknown exchange type '{routing_type}'")
    except ValueError as error:
        raise ExchangeArgumentError(str(error)) from error
    if type == DELAYED_TYPE:
        exchange.become_delayed(DELAYED_TYPE)
    return exchange


def _routing_type(arguments: Mapping[str, Any]) -> str:
    """Return the type by which a delayed exchange routes. Source: RabbitMQ's plugin, validate/1."""
    routing_type = arguments.get("x-delayed-type")
    if not isinstance(routing_type, str) or routing_type == DELAYED_TYPE:
        raise ExchangeArgumentError("Invalid argument, 'x-delayed-type' must be an existing exchange type")
    return routing_type


def _dialect(arguments: Mapping[str, Any]) -> TopicDialect:
    name = arguments.get("x-topic-dialect", AMQP.name)
    dialect = DIALECTS.get(name) if isinstance(name, str) else None
    if dialect is None:
        raise ExchangeArgumentError(
            f"Invalid argument, 'x-topic-dialect' must be one of {', '.join(DIALECTS)}, not {name!r}"
        )
    return dialect


def _topic_index(arguments: Mapping[str, Any], default: str) -> str:
    name = arguments.get("x-topic-index", default)
    if not isinstance(name, str) or name not in CHOICES:
        raise ExchangeArgumentError(
            f"Invalid argument, 'x-topic-index' must be one of {', '.join(CHOICES)}, not {name!r}"
        )
    return name
