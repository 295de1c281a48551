"""What a changed pattern does to the cached routes of a topic exchange."""

from typing import Any

import pytest

from broker.routing.cache import SCANS_PER_ADMISSION
from broker.routing.exchange_types import make_exchange
from broker.routing.topic_exchange import COMPARED_KEYS, TopicExchange


def warm(exchange: TopicExchange, keys: list[str]) -> None:
    """Have the routes of these keys cached."""
    for key in keys * 2:
        exchange.route(key)
    assert len(exchange.cache) == len(keys)


def topic_exchange(dialect: str = "amqp") -> TopicExchange:
    """Return an exchange."""
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
    """At the bind, and again at the unbind; what ended is answered anew."""
    exchange = topic_exchange(dialect)
    warm(exchange, ended + kept)
    routes = {key: exchange.route(key) for key in ended + kept}
    exchange.bind("q", pattern, {})
    assert [key for key, route in routes.items() if not route.live] == ended
    assert all(exchange.route(key).destinations == ("q",) for key in ended)
    warm(exchange, ended + kept)
    routes = {key: exchange.route(key) for key in ended + kept}
    exchange.unbind("q", pattern, {})
    assert [key for key, route in routes.items() if not route.live] == ended
    assert not any(exchange.route(key).destinations for key in ended)


def test_a_storm_of_bindings_does_not_look_at_every_key_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as admissions pay for it the cache is looked through; then it is given up."""
    exchange = topic_exchange()
    warm(exchange, [f"a.{number}" for number in range(50)])
    looked_at = 0

    def count(pattern: Any, keys: list[str], dialect: Any) -> list[str]:
        nonlocal looked_at
        looked_at += len(keys)
        return []

    monkeypatch.setattr("broker.routing.topic_exchange.matching_keys", count)
    for number in range(1000):
        exchange.bind(f"q{number}", "*.none", {})
        exchange.unbind(f"q{number}", "*.none", {})
        exchange.bind(f"q{number}", "a.#.none.#", {})
    assert looked_at == 0 if len(exchange.cache) else looked_at <= 50 * SCANS_PER_ADMISSION
    assert len(exchange.cache) == 0


def test_of_very_many_candidates_all_are_given_up() -> None:
    """A pattern that may match more keys than are worth comparing ends them all, and no other."""
    exchange = topic_exchange()
    warm(exchange, [f"a.{number}" for number in range(COMPARED_KEYS + 1)] + ["b.1", "a.1.c"])
    exchange.bind("q", "a.*.d.#", {})
    assert list(exchange.cache.entries) == ["b.1"]
