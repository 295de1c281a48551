"""Exchanges and their cached routes against the reference matcher, under changes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.cache import CacheLimits
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import KeyedExchange
from broker.routing.exchange_types import make_exchange
from broker.routing.index import AUTO, CHOICES
from broker.routing.pattern import split_words
from broker.routing.route import Route
from tests.property.topic_reference import matches

WORDS = st.sampled_from(["a", "b", "", "*", "#"])
QUEUES = st.sampled_from(["q1", "q2", "q3"])


def expected(exchange_type: str, bindings: set[tuple[str, str, int]], key: str) -> set[str]:
    """Return the destinations that a routing key must reach."""
    match exchange_type:
        case "fanout":
            return {queue for _, queue, _ in bindings}
        case "direct":
            return {queue for binding_key, queue, _ in bindings if binding_key == key}
        case _:
            words = split_words(key)
            return {queue for pattern, queue, _ in bindings if matches(split_words(pattern), words)}


SHORT_KEYS = st.lists(WORDS, max_size=2).map(".".join)
BINDING_STEP = st.tuples(
    st.sampled_from(["bind", "unbind", "route", "route", "route", "route", "delete queue", "remove all"]),
    SHORT_KEYS,
    QUEUES,
    st.integers(0, 1),
)


@pytest.mark.parametrize(
    ("exchange_type", "index"), [("direct", AUTO), ("fanout", AUTO), *(("topic", choice) for choice in CHOICES)]
)
@pytest.mark.parametrize("limits", [CacheLimits(entries=4, cache_bytes=1300, window=1000), CacheLimits(8, 9999, 5)])
@given(steps=st.lists(BINDING_STEP, max_size=80))
@settings(max_examples=60)
def test_no_live_route_is_ever_wrong(
    exchange_type: str, index: str, limits: CacheLimits, steps: list[tuple[str, str, str, int]]
) -> None:
    """Any route that was ever returned may be used while it is live, and the limits hold at every step."""
    exchange = make_exchange("x", exchange_type, cache_limits=limits, topic_index=index)
    bindings: set[tuple[str, str, int]] = set()
    kept: list[tuple[str, Route]] = []
    for verb, key, queue, variant in steps:
        arguments: dict[str, Any] = {"variant": variant} if variant else {}
        if verb == "bind":
            assert exchange.bind(queue, key, arguments) == ((key, queue, variant) not in bindings)
            bindings.add((key, queue, variant))
        elif verb == "unbind":
            assert (exchange.unbind(queue, key, arguments) is None) == ((key, queue, variant) not in bindings)
            bindings.discard((key, queue, variant))
        elif verb == "delete queue":
            if queue in exchange.bundles:
                exchange.remove_bundle(exchange.bundles[queue])
            bindings = {known for known in bindings if known[1] != queue}
        elif verb == "remove all":
            assert sum(map(len, exchange.end())) == len(bindings)
            bindings.clear()
            assert not any(route.live for _, route in kept)
            exchange = make_exchange("x", exchange_type, cache_limits=limits, topic_index=index)
        else:
            route = exchange.route(key)
            assert set(route.destinations) == expected(exchange_type, bindings, key)
            assert len(set(route.destinations)) == len(route.destinations)
            kept.append((key, route))
        assert exchange.binding_count == len(bindings)
        if isinstance(exchange, KeyedExchange):
            assert len(exchange.cache.entries) <= limits.entries
            assert exchange.cache.used_bytes <= limits.cache_bytes
        for kept_key, route in kept:
            if route.live:
                assert set(route.destinations) == expected(exchange_type, bindings, kept_key)


@given(st.lists(st.tuples(st.sampled_from(["declare", "delete", "route", "route"]), QUEUES), max_size=60))
@settings(max_examples=60)
def test_default_exchange_follows_the_queues(steps: list[tuple[str, str]]) -> None:
    """A route through the default exchange ends with its queue, and an empty one with the queue's declaration."""
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
