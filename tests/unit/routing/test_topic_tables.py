"""Every engine, alone and within the topic index, against the tables of other projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.topics.published_engines import ENGINES, make_engine
from broker.routing.index import TopicEngine, TopicIndex
from broker.routing.pattern import AMQP, MQTT, PatternLimits, TopicDialect
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
    """Return an index over the engine of this name, with these bindings."""
    index = TopicIndex(make_engine(name, dialect), LIMITS, dialect)
    for destination, key in bindings.items():
        index.add(index.parse(key), destination)
    return index


def alone(name: str, bindings: Mapping[Any, str], dialect: TopicDialect = AMQP) -> TopicEngine[set[Any]]:
    """Return an engine with these bindings: each pattern once, its destinations as its target."""
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
    """RabbitMQ's table of 27 bindings and 12 keys holds."""
    found = indexed(name, SUITE_BINDINGS).match(key)
    assert sorted(found) == sorted(SUITE_EXPECTED[key])
    assert set().union(*alone(name, SUITE_BINDINGS).match(key)) == SUITE_EXPECTED[key]


def test_routing_suite_after_removals(name: str) -> None:
    """In the suite's second half, six bindings are removed, the rest answers as before, then all are removed."""
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
    """The patterns of a table match together and alone, each found once."""
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
    """MQTT filters: levels, empty ones too, the parent of `#`, the `$` rule; dots and stars are ordinary."""
    matched, others = MQTT_FILTERS[topic_filter]
    bindings: dict[str, str] = {"q": topic_filter}
    index, engine = indexed(name, bindings, MQTT), alone(name, bindings, MQTT)
    assert [topic for topic in matched + others if index.match(topic)] == matched
    assert [topic for topic in matched + others if engine.match(topic)] == matched


def test_filters_beside_each_other(name: str) -> None:
    """With all filters of the table in one index, each topic finds exactly those that match it."""
    index = indexed(name, {topic_filter: topic_filter for topic_filter in MQTT_FILTERS}, MQTT)
    for topic_filter, (matched, others) in MQTT_FILTERS.items():
        assert all(topic_filter in index.match(topic) for topic in matched)
        assert not any(topic_filter in index.match(topic) for topic in others)
