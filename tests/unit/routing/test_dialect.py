"""The MQTT dialect of a topic exchange."""

import pytest

from broker.routing.exchange_types import ExchangeArgumentError, make_exchange
from broker.routing.pattern import BindingKeyError, PatternLimits


@pytest.mark.parametrize(
    "key", ["", "+foo", "fo+o", "foo+", "#foo", "foo#", "foo/#a", "foo/#/bar", "#/", "##", "a\0/b"]
)
def test_what_is_no_filter_is_refused_at_bind(key: str) -> None:
    """The refusal names the key, and no binding is left."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": "mqtt"})
    with pytest.raises(BindingKeyError, match="is not a topic filter") as caught:
        exchange.bind("q", key, {})
    assert repr(key)[1:-1] in repr(str(caught.value))
    assert not exchange.binding_count
    assert exchange.unbind("q", key, {}) is None
    make_exchange("x", "topic").bind("q", key, {})  # any of these is a pattern in AMQP


def test_limits_hold_for_levels() -> None:
    """The limit on words applies to levels; `#` occurs at most once."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": "mqtt"})
    limits = PatternLimits(words=3)
    assert exchange.bind("q", "a/b/#", {}, limits)
    with pytest.raises(BindingKeyError, match="has 4 words"):
        exchange.bind("q", "a/b/c/#", {}, limits)
    with pytest.raises(BindingKeyError, match="the limit is 0"):
        exchange.bind("q", "a/#", {}, PatternLimits(hashes=0))


@pytest.mark.parametrize("name", ["MQTT", "nats", 1, None, True])
def test_unknown_dialect_is_refused(name: object) -> None:
    """An unknown dialect is an argument error on a topic exchange and ignored on other exchanges."""
    with pytest.raises(ExchangeArgumentError, match="x-topic-dialect"):
        make_exchange("x", "topic", arguments={"x-topic-dialect": name})
    make_exchange("x", "direct", arguments={"x-topic-dialect": name})


def test_amqp_is_the_default() -> None:
    """Without the argument, and with the value amqp, the exchange uses AMQP patterns."""
    for arguments in ({}, {"x-topic-dialect": "amqp"}):
        exchange = make_exchange("x", "topic", arguments=arguments)
        exchange.bind("q", "a.*", {})
        assert exchange.route("a.b").destinations == ("q",)
        assert exchange.route("a/b").destinations == ()
