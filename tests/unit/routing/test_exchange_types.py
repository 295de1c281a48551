"""Making exchanges from the types that clients declare."""

from typing import Any

import pytest

from broker.routing.exchange_types import EXCHANGE_TYPES, ExchangeArgumentError, make_exchange
from broker.routing.pattern import BindingKeyError, PatternLimits


@pytest.mark.parametrize("type", [kind for kind in EXCHANGE_TYPES if kind != "x-delayed-message"])
def test_a_delayed_exchange_routes_as_its_argument_says(type: str) -> None:
    """A delayed exchange reports the delayed type and routes by its x-delayed-type."""
    arguments = {"x-delayed-type": type, "x-cache-size": 1}
    exchange = make_exchange("x", "x-delayed-message", arguments=arguments)
    plain = make_exchange("x", type, arguments=arguments)
    assert exchange.type == "x-delayed-message"
    assert exchange.delayed
    assert not plain.delayed
    assert plain.type == type
    assert type_of(exchange) is type_of(plain)
    assert exchange.by_headers == plain.by_headers
    assert exchange.arguments == arguments


def type_of(value: object) -> type:
    """Return the class of a value."""
    return value.__class__


def test_a_delayed_topic_exchange_matches_patterns() -> None:
    """Limits and dialect apply to the exchange that routes."""
    exchange = make_exchange("x", "x-delayed-message", arguments={"x-delayed-type": "topic", "x-topic-dialect": "mqtt"})
    exchange.bind("q", "a/+", {})
    assert exchange.route("a/b").destinations == ("q",)
    with pytest.raises(BindingKeyError):
        exchange.bind("q", "a/b/c", {}, PatternLimits(words=2))


@pytest.mark.parametrize("routing_type", [None, 1, "x-delayed-message"])
def test_a_delayed_exchange_has_to_say_how_it_routes(routing_type: Any) -> None:
    """A delayed exchange without a type, or with its own, is RabbitMQ's 406."""
    arguments = {} if routing_type is None else {"x-delayed-type": routing_type}
    with pytest.raises(ExchangeArgumentError, match="'x-delayed-type' must be an existing exchange type"):
        make_exchange("x", "x-delayed-message", arguments=arguments)


@pytest.mark.parametrize(
    ("type", "arguments"), [("x-jms-topic", {}), ("", {}), ("x-delayed-message", {"x-delayed-type": "x-jms-topic"})]
)
def test_an_unknown_type_is_told_apart(type: str, arguments: dict[str, Any]) -> None:
    """An unknown type is RabbitMQ's 503, also as x-delayed-type."""
    with pytest.raises(ExchangeArgumentError, match=r"unknown exchange type '(x-jms-topic)?'"):
        make_exchange("x", type, arguments=arguments)


def test_the_alternate_comes_from_the_arguments() -> None:
    """The alternate exchange comes from the arguments and may change later; a value that is not a string is ignored."""
    exchange = make_exchange("x", "topic", arguments={"alternate-exchange": "ae"})
    assert exchange.alternate == "ae"
    exchange.set_alternate(None)
    assert exchange.alternate is None
    assert make_exchange("x", "topic", arguments={"alternate-exchange": 1}).alternate is None
    assert make_exchange("x", "topic").alternate is None
