"""Listeners of an exchange: they receive by topic patterns and are not destinations."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from broker.routing.cache import CacheLimits
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import DELAYED_TYPE, EXCHANGE_TYPES, make_exchange
from broker.routing.pattern import BindingKeyError, PatternLimits
from broker.routing.router import Router
from tests.unit.routing.message_fields import Fields, Queue, pattern_matches

KINDS = tuple(kind for kind in EXCHANGE_TYPES if kind != DELAYED_TYPE)
KEYS = ("", "a", "a.b", "a.b.c", "b", "b.c")
PATTERNS = ("#", "a.#", "a.*", "*", "b", "#.c", "")


def exchange_of(kind: str) -> Exchange:
    """Return an exchange with a small route cache and one destination for some keys."""
    exchange = make_exchange("x", kind, arguments={"x-cache-size": 1}, cache_limits=CacheLimits(entries=4))
    exchange.bind(Queue("bound"), {"x-consistent-hash": "1", "x-local-random": ""}.get(kind, "a.b"), {})
    return exchange


def heard(exchange: Exchange, key: str) -> set[Any]:
    """Return the destinations of a message, by its route where the key decides, and by itself."""
    router = Router({"x": exchange}.get)
    by_itself = router.match(exchange, key, Fields())
    if not router.dynamic(exchange):
        assert set(router.route(exchange, key).destinations) == set(by_itself)
    assert len(set(by_itself)) == len(by_itself)
    return {getattr(one, "name", one) for one in by_itself}


@pytest.mark.parametrize("kind", KINDS)
def test_listeners_hear_what_their_patterns_match(kind: str) -> None:
    """On every type, listeners come and go while routes are cached; the destinations stay the same."""
    random = Random(7)
    exchange = exchange_of(kind)
    before = {key: heard(exchange, key) for key in KEYS}
    listening: dict[str, str] = {}
    for step in range(300):
        if listening and random.random() < 0.4:
            gone = random.choice(sorted(listening))
            del listening[gone]
            exchange.forget_listener(gone)
        else:
            listening[f"l{step}"] = pattern = random.choice(PATTERNS)
            exchange.listen(f"l{step}", pattern)
        for key in random.sample(KEYS, 3):
            hears = {name for name, pattern in listening.items() if pattern_matches(pattern, key)}
            assert heard(exchange, key) == before[key] | hears
            assert exchange.is_routed(exchange.match([key], Fields())) == bool(before[key])
    assert exchange.binding_count == 1


def test_the_default_exchange_is_heard() -> None:
    """Listeners of the default exchange match names of queues that exist and others."""
    exchange = DefaultExchange({"q": "queue q"}.get)
    exchange.listen("listener", "#")
    assert exchange.route("q").destinations == ("queue q", "listener")
    assert exchange.route("other").destinations == ("listener",)
    assert not exchange.is_routed(exchange.route("other").destinations)
    exchange.forget_listener("listener")
    assert exchange.route("other").destinations == ()


def test_an_alternate_exchange_is_taken_though_somebody_listens() -> None:
    """A listener is not a destination, so the alternate exchange is used; its listeners match as well."""
    first = make_exchange("x", "topic", arguments={"alternate-exchange": "other"})
    other = make_exchange("other", "fanout")
    other.bind("queue", "", {})
    router = Router({"x": first, "other": other}.get)
    assert router.route(first, "k").destinations == ("queue",)
    first.listen("one", "#")
    other.listen("two", "k.#")
    assert set(router.route(first, "k").destinations) == {"one", "two", "queue"}
    assert set(router.match(first, "j", Fields())) == {"one", "queue"}
    first.bind("bound", "k", {})
    assert set(router.route(first, "k").destinations) == {"one", "bound"}


def test_a_listener_reads_patterns_as_its_exchange_does() -> None:
    """A listener of a topic exchange with the MQTT dialect has an MQTT filter."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": "mqtt"})
    exchange.listen("one", "a/+/c")
    assert exchange.route("a/b/c").destinations == ("one",)
    assert exchange.route("a.b.c").destinations == ()


def test_a_pattern_over_the_limits_is_refused() -> None:
    """A pattern over the limits is refused without a change."""
    exchange = make_exchange("x", "direct")
    with pytest.raises(BindingKeyError):
        exchange.listen("one", "#.a.#", PatternLimits(hashes=1))
    assert exchange.route("a").destinations == ()


def test_an_exchange_without_listeners_has_one_route_for_all_keys() -> None:
    """Without listeners, also after the last has left, a fanout exchange has one route for all keys."""
    exchange = make_exchange("x", "fanout")
    exchange.bind("q", "", {})
    exchange.listen("one", "a")
    exchange.forget_listener("one")
    assert exchange.route("a") is exchange.route("b")
