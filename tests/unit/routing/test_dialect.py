"""The MQTT dialect of a topic exchange."""

import pytest

from broker.routing.dialect import AMQP, MQTT
from broker.routing.exchange_types import ExchangeArgumentError, make_exchange
from broker.routing.index import TopicIndex, matching_keys
from broker.routing.pattern import BindingKeyError, PatternLimits

# mosquitto's topic_test.c, EMQX's emqx_topic_SUITE, and MQTT 5.0, 4.7
MATCHES = [
    ("foo/#", ["foo", "foo/", "foo/bar", "foo/bar/baz"], ["fo", "foobar", "/foo"]),
    ("foo//+", ["foo//bar", "foo//"], ["foo/bar", "foo//bar/"]),
    ("foo/+/+/baz", ["foo///baz", "foo/a/b/baz"], ["foo/a/baz"]),
    ("foo/bar/+", ["foo/bar/"], ["foo/bar"]),
    ("A/B/+/#", ["A/B/B/C", "A/B/B"], ["A/B", "a/B/B"]),
    ("#", ["/foo/bar", "a", "/", ""], ["$SYS/bar", "$"]),
    ("/#", ["/foo/bar", "/"], ["foo/bar"]),
    ("+", ["finance", ""], ["/finance", "$finance"]),
    ("+/+", ["/finance", "/", "a/$b"], ["finance", "$SYS/a"]),
    ("+/monitor/Clients", ["x/monitor/Clients"], ["$SYS/monitor/Clients"]),
    ("$SYS/#", ["$SYS", "$SYS/a/b"], ["SYS/a", "$BOB/a"]),
    ("$SYS/+", ["$SYS/a"], ["$SYS", "$SYS/a/b"]),
    ("a/$b/+", ["a/$b/c"], ["a/b/c"]),
    ("a/+/c/#", ["a//c/", "a/b/c"], ["a/b/d"]),
    ("a.b/+", ["a.b/c"], ["a/b", "a/b/c", "a.b.c"]),
    ("a/*", ["a/*"], ["a/b"]),
    ("*/+", ["*/b"], ["a/b", "b"]),
    ("+/*/#", ["a/*", "a/*/b"], ["a/b", "a"]),
]


@pytest.mark.parametrize(("topic_filter", "matched", "other"), MATCHES, ids=[row[0] for row in MATCHES])
def test_filters(topic_filter: str, matched: list[str], other: list[str]) -> None:
    """Levels, empty ones too, the parent of `#`, the `$` rule; dots and stars mean nothing."""
    index = TopicIndex(dialect=MQTT)
    pattern = index.parse(topic_filter)
    index.add(pattern, "q")
    assert [topic for topic in matched + other if index.match(topic)] == matched
    if not pattern.literal:
        assert matching_keys(pattern, matched + other, MQTT) == matched


@pytest.mark.parametrize(
    "key", ["", "+foo", "fo+o", "foo+", "#foo", "foo#", "foo/#a", "foo/#/bar", "#/", "##", "a\0/b"]
)
def test_what_is_no_filter_is_refused_at_bind(key: str) -> None:
    """The key is named, and no binding is left behind."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": "mqtt"})
    with pytest.raises(BindingKeyError, match="is not a topic filter") as caught:
        exchange.bind("q", key, {})
    assert repr(key)[1:-1] in repr(str(caught.value))
    assert not exchange.bindings
    assert exchange.unbind("q", key, {}) is None
    make_exchange("x", "topic").bind("q", key, {})  # to AMQP any of these is a pattern


def test_limits_hold_for_levels() -> None:
    """The limit on words is one on levels; `#` can only come once."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": "mqtt"})
    limits = PatternLimits(words=3)
    exchange.check_key("a/b/#", limits)
    with pytest.raises(BindingKeyError, match="has 4 words"):
        exchange.check_key("a/b/c/#", limits)
    with pytest.raises(BindingKeyError, match="the limit is 0"):
        exchange.check_key("a/#", PatternLimits(hashes=0))


@pytest.mark.parametrize("name", ["MQTT", "nats", 1, None, True])
def test_unknown_dialect_is_refused(name: object) -> None:
    """A dialect that nobody speaks is an argument error, on a topic exchange; elsewhere the argument means nothing."""
    with pytest.raises(ExchangeArgumentError, match="x-topic-dialect"):
        make_exchange("x", "topic", arguments={"x-topic-dialect": name})
    make_exchange("x", "direct", arguments={"x-topic-dialect": name})


def test_amqp_is_the_default() -> None:
    """Without the argument, and with its own name, the exchange speaks AMQP."""
    for arguments in ({}, {"x-topic-dialect": "amqp"}):
        exchange = make_exchange("x", "topic", arguments=arguments)
        exchange.bind("q", "a.*", {})
        assert exchange.route("a.b").destinations == ("q",)
        assert exchange.route("a/b").destinations == ()


@pytest.mark.parametrize(
    ("key", "edges"),
    [("a.b.*.c.#.d", ("a.b", "d")), ("#", ("", "")), ("a.#", ("a", "")), ("*.b", ("", "b")), ("*..", ("", "."))],
)
def test_edges(key: str, edges: tuple[str, str]) -> None:
    """What stands before the first wildcard and behind the last; `a.#` matches `a`, so no dot is part of it."""
    assert AMQP.edges(AMQP.parse(key)) == edges
