"""The MQTT dialect of a topic exchange against the specification's rules, under changes."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.cache import CacheLimits
from broker.routing.exchange_types import make_exchange
from broker.routing.pattern import BindingKeyError
from broker.routing.topic_exchange import TopicExchange
from tests.property.mqtt_reference import is_topic_filter, mqtt_matches

# Every character with a meaning in either dialect; "/" is frequent, for levels.
TEXTS = st.text("a$+#*./\0", max_size=6)
FILTERS = st.lists(st.sampled_from(["a", "$a", "", "+", "*", ".", "a+", "#a"]), min_size=1, max_size=4).map("/".join)
KEYS = st.one_of(FILTERS, FILTERS.map(lambda text: f"{text}/#"), st.just("#"), TEXTS)
STEPS = st.tuples(st.sampled_from(["bind", "bind", "unbind", "route", "route", "route"]), KEYS, st.sampled_from("qr"))


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=200)
def test_topics_reach_what_the_specification_says(steps: list[tuple[str, str, str]]) -> None:
    """With binds, unbinds and cached lookups interleaved, invalid filters are refused and no live route is wrong."""
    arguments: dict[str, Any] = {"x-topic-dialect": "mqtt"}
    exchange = make_exchange("x", "topic", arguments=arguments, cache_limits=CacheLimits(entries=8))
    assert isinstance(exchange, TopicExchange)
    bound: set[tuple[str, str]] = set()
    kept = []
    for verb, key, queue in steps:
        if verb == "bind":
            try:
                exchange.bind(queue, key, {})
            except BindingKeyError:
                assert not is_topic_filter(key)
            else:
                assert is_topic_filter(key)
                bound.add((key, queue))
        elif verb == "unbind":
            assert (exchange.unbind(queue, key, {}) is not None) == ((key, queue) in bound)
            bound.discard((key, queue))
        else:
            route = exchange.route(key)
            assert set(route.destinations) == {name for pattern, name in bound if mqtt_matches(pattern, key)}
            kept.append((key, route))
        for topic, route in kept:
            if route.live:
                assert set(route.destinations) == {name for pattern, name in bound if mqtt_matches(pattern, topic)}
    for pattern, queue in bound:
        assert exchange.unbind(queue, pattern, {}) is not None
    assert exchange._index.size == 0
