"""Every engine, alone and within the topic index, against the literal tables of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.routing.dialect import AMQP, MQTT, TopicDialect
from broker.routing.engine_names import ENGINES, make_engine
from broker.routing.index import TopicIndex
from broker.routing.pattern import PatternLimits
from broker.routing.topic_engine import TopicEngine
from tests.unit.routing.topic_tables import (
    AMQP_TABLES,
    MQTT_FILTERS,
    SUITE_BINDINGS,
    SUITE_EXPECTED,
    SUITE_REMOVED,
)

pytestmark = pytest.mark.parametrize("name", ENGINES)

LIMITS = PatternLimits(hashes=3)


def indexed(name: str, bindings: Mapping[Any, str], dialect: TopicDialect = AMQP) -> TopicIndex:
    """Return an index with these bindings, over the engine of that name."""
    index = TopicIndex(make_engine(name, dialect), LIMITS, dialect)
    for destination, key in bindings.items():
        index.add(index.parse(key), destination)
    return index


def alone(name: str, bindings: Mapping[Any, str], dialect: TopicDialect = AMQP) -> TopicEngine[set[Any]]:
    """Return an engine with these bindings, each pattern once, its destinations as its target."""
    engine: TopicEngine[set[Any]] = make_engine(name, dialect)
    for destination, key in bindings.items():
        pattern = dialect.parse(key, LIMITS)
        known = engine.find(pattern)
        if known is None:
            engine.add(pattern, {destination})
        else:
            known.add(destination)
    return engine


@pytest.mark.parametrize("key", SUITE_EXPECTED)
def test_routing_suite(name: str, key: str) -> None:
    """RabbitMQ's table of 27 bindings and 12 keys."""
    found = indexed(name, SUITE_BINDINGS).match(key)
    assert sorted(found) == sorted(SUITE_EXPECTED[key])
    assert set().union(*alone(name, SUITE_BINDINGS).match(key)) == SUITE_EXPECTED[key]


def test_routing_suite_after_removals(name: str) -> None:
    """The suite's second half: six bindings go, the rest answers as before, then all go."""
    index = indexed(name, SUITE_BINDINGS)
    index.add(index.parse("args-test"), 27)
    for removed in SUITE_REMOVED:
        index.remove(index.parse(SUITE_BINDINGS[removed]), removed)
    gone = set(SUITE_REMOVED) - {27}
    for key, destinations in SUITE_EXPECTED.items():
        assert set(index.match(key)) == destinations - gone
    for destination in SUITE_BINDINGS.keys() - gone:
        index.remove(index.parse(SUITE_BINDINGS[destination]), destination)
    for key in ("a.b.c", "b.b.c", ""):
        assert index.match(key) == ()


@pytest.mark.parametrize("table", AMQP_TABLES)
def test_tables(name: str, table: str) -> None:
    """Patterns together, and each of them alone; what is found is found once, and only that."""
    patterns, expected = AMQP_TABLES[table]
    itself: dict[str, str] = {pattern: pattern for pattern in patterns}
    index, engine = indexed(name, itself), alone(name, itself)
    for key, found in expected.items():
        assert sorted(index.match(key)) == sorted(found), key
        assert set().union(*engine.match(key)) == found, key
    for pattern in patterns:
        single = alone(name, {pattern: pattern})
        assert [key for key in expected if single.match(key)] == [
            key for key, found in expected.items() if pattern in found
        ]


@pytest.mark.parametrize("topic_filter", MQTT_FILTERS)
def test_filters(name: str, topic_filter: str) -> None:
    """Levels, empty ones too, the parent of `#`, the `$` rule; dots and stars mean nothing."""
    matched, others = MQTT_FILTERS[topic_filter]
    bindings: dict[str, str] = {"q": topic_filter}
    index, engine = indexed(name, bindings, MQTT), alone(name, bindings, MQTT)
    assert [topic for topic in matched + others if index.match(topic)] == matched
    assert [topic for topic in matched + others if engine.match(topic)] == matched


def test_filters_beside_each_other(name: str) -> None:
    """All filters of the table in one index: each topic finds those that name it, none of those that exclude it."""
    index = indexed(name, {topic_filter: topic_filter for topic_filter in MQTT_FILTERS}, MQTT)
    for topic_filter, (matched, others) in MQTT_FILTERS.items():
        assert all(topic_filter in index.match(topic) for topic in matched)
        assert not any(topic_filter in index.match(topic) for topic in others)
