"""The topic index and its cache against the reference matcher, under changes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.cache import CacheLimits
from broker.routing.exchange import DefaultExchange, KeyedExchange
from broker.routing.exchange_types import make_exchange
from broker.routing.index import TopicIndex
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route
from tests.property.topic_reference import matches

WORDS = st.sampled_from(["a", "b", "", "*", "#"])
KEYS = st.lists(WORDS, max_size=5).map(".".join)
QUEUES = st.sampled_from(["q1", "q2", "q3"])
VERBS = st.sampled_from(["add", "add", "remove", "match", "match"])


@given(st.lists(st.tuples(VERBS, KEYS, QUEUES), max_size=60))
@settings(max_examples=200, deadline=None)
def test_index_answers_as_the_reference_does(steps: list[tuple[str, str, str]]) -> None:
    """Interleaved adds and removals, empty words, and wildcard characters in published keys."""
    index = TopicIndex(limits=PatternLimits(hashes=9, words=9))
    held: Counter[tuple[str, str]] = Counter()
    for verb, key, queue in steps:
        if verb == "add":
            index.add(index.parse(key), queue)
            held[key, queue] += 1
        elif verb == "remove" and held[key, queue]:
            index.remove(index.parse(key), queue)
            held[key, queue] -= 1
        found = index.match(key)
        assert len(set(found)) == len(found)
        assert set(found) == {q for (pattern, q), count in held.items() if count and matches(pattern, key)}
    for (pattern, queue), count in held.items():
        for _ in range(count):
            index.remove(index.parse(pattern), queue)
    assert len(index) == 0
    assert index.match("a") == ()


def expected(exchange_type: str, bindings: set[tuple[str, str, int]], key: str) -> set[str]:
    """Return the destinations that a routing key must reach."""
    match exchange_type:
        case "fanout":
            return {queue for _, queue, _ in bindings}
        case "direct":
            return {queue for binding_key, queue, _ in bindings if binding_key == key}
        case _:
            return {queue for pattern, queue, _ in bindings if matches(pattern, key)}


SHORT_KEYS = st.lists(WORDS, max_size=2).map(".".join)
BINDING_STEP = st.tuples(
    st.sampled_from(["bind", "unbind", "route", "route", "route", "route", "delete queue", "remove all"]),
    SHORT_KEYS,
    QUEUES,
    st.integers(0, 1),
)


@pytest.mark.parametrize("exchange_type", ["direct", "fanout", "topic"])
@pytest.mark.parametrize("limits", [CacheLimits(entries=4, cache_bytes=1300, window=1000), CacheLimits(8, 9999, 5)])
@given(steps=st.lists(BINDING_STEP, max_size=80))
@settings(max_examples=60, deadline=None)
def test_no_live_route_is_ever_wrong(
    exchange_type: str, limits: CacheLimits, steps: list[tuple[str, str, str, int]]
) -> None:
    """Whoever kept a route from any time before may use it while it is live; the bounds hold at every step."""
    exchange = make_exchange("x", exchange_type, cache_limits=limits)
    bindings: set[tuple[str, str, int]] = set()
    kept: list[tuple[str, Route]] = []
    for verb, key, queue, variant in steps:
        arguments: dict[str, Any] = {"variant": variant} if variant else {}
        if verb == "bind":
            assert (exchange.bind(queue, key, arguments) is None) == ((key, queue, variant) in bindings)
            bindings.add((key, queue, variant))
        elif verb == "unbind":
            assert (exchange.unbind(queue, key, arguments) is None) == ((key, queue, variant) not in bindings)
            bindings.discard((key, queue, variant))
        elif verb == "delete queue":
            for binding in [known for known in exchange.bindings if known.destination == queue]:
                exchange.remove(binding)
            bindings = {known for known in bindings if known[1] != queue}
        elif verb == "remove all":
            assert len(exchange.remove_all()) == len(bindings)
            bindings.clear()
            assert not any(route.live for _, route in kept)
        else:
            route = exchange.route(key)
            assert set(route.destinations) == expected(exchange_type, bindings, key)
            assert len(set(route.destinations)) == len(route.destinations)
            kept.append((key, route))
        assert len(exchange.bindings) == len(bindings)
        if isinstance(exchange, KeyedExchange):
            assert len(exchange.cache) <= limits.entries
            assert exchange.cache.used_bytes <= limits.cache_bytes
        for kept_key, route in kept:
            if route.live:
                assert set(route.destinations) == expected(exchange_type, bindings, kept_key)


@given(st.lists(st.tuples(st.sampled_from(["declare", "delete", "route", "route"]), QUEUES), max_size=60))
@settings(max_examples=60, deadline=None)
def test_default_exchange_follows_the_queues(steps: list[tuple[str, str]]) -> None:
    """A route through the default exchange dies with its queue, and an empty one with the queue's declaration."""
    queues: dict[str, object] = {}
    exchange = DefaultExchange(queues.get)
    kept: list[tuple[str, Route]] = []
    for verb, name in steps:
        if verb == "route":
            kept.append((name, exchange.route(name)))
        else:
            if verb == "declare":
                queues.setdefault(name, object())
            else:
                queues.pop(name, None)
            exchange.touch(name)
        for kept_name, route in kept:
            if route.live:
                assert route.destinations == ((queues[kept_name],) if kept_name in queues else ())
