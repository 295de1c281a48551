"""The effect of a changed pattern on the cached routes of a topic exchange."""

import pytest

from broker.routing.exchange_types import make_exchange
from broker.routing.topic_exchange import TopicExchange
from tests.unit.routing.message_fields import Fields


def warm(exchange: TopicExchange, keys: list[str]) -> None:
    """Cache the routes of these keys."""
    for key in keys * 2:
        exchange.route(key)
    assert len(exchange.cache.entries) == len(keys)


def topic_exchange(dialect: str = "amqp") -> TopicExchange:
    """Return a topic exchange."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": dialect})
    assert isinstance(exchange, TopicExchange)
    return exchange


@pytest.mark.parametrize(
    ("dialect", "pattern", "ended", "kept"),
    [
        ("amqp", "a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c", "b.b.c", "a.b.d", "xa.b.c", ""]),
        ("amqp", "a.#", ["a", "a.b", "a.b.c"], ["ab", "b.a", ""]),
        ("amqp", "#.c", ["c", "a.c"], ["c.a", "ac", ""]),
        ("amqp", "#", ["", "a", "a.b"], []),
        ("amqp", "a.#.b.#.c", ["a.b.c", "a.x.b.c"], ["a.c", "a.b", "b.c"]),
        ("mqtt", "a/+/c", ["a/b/c", "a//c"], ["a/c", "b/b/c", "a.b.c"]),
        ("mqtt", "#", ["a", "/", "a/$b"], ["$SYS", "$SYS/a"]),
        ("mqtt", "$SYS/#", ["$SYS", "$SYS/a"], ["SYS", "a/$SYS"]),
    ],
)
def test_only_matching_routes_end(dialect: str, pattern: str, ended: list[str], kept: list[str]) -> None:
    """Only matching routes end, at the bind and at the unbind, and the next lookup is right."""
    exchange = topic_exchange(dialect)
    warm(exchange, ended + kept)
    routes = {key: exchange.route(key) for key in ended + kept}
    exchange.bind("q", pattern, {})
    assert [key for key, route in routes.items() if not route.live] == ended
    assert all(exchange.route(key).destinations == ("q",) for key in ended)
    assert [key for key in ended + kept if exchange.matches(pattern, {}, [key], Fields())] == ended
    warm(exchange, ended + kept)
    routes = {key: exchange.route(key) for key in ended + kept}
    exchange.unbind("q", pattern, {})
    assert [key for key, route in routes.items() if not route.live] == ended
    assert not any(exchange.route(key).destinations for key in ended)


def test_who_kept_a_route_that_a_pattern_touched_asks_again_once() -> None:
    """The next lookup of a touched key makes a lasting route, so that a bind costs each key one miss."""
    exchange = topic_exchange()
    warm(exchange, ["a.b"])
    exchange.bind("q", "a.*", {})
    route = exchange.route("a.b")
    assert (route.live, route.destinations) == (True, ("q",))
    assert exchange.route("a.b") is route
