"""The reference matcher, and the pairwise matching of the linear engines."""

from __future__ import annotations

from itertools import product

import pytest

from broker.routing.pattern import AMQP, MQTT, words_match
from tests.property.topic_reference import matches
from tests.unit.routing.topic_tables import AMQP_TABLES, MQTT_FILTERS, SUITE_BINDINGS, SUITE_EXPECTED


@pytest.mark.parametrize("table", AMQP_TABLES)
def test_reference_agrees_with_the_tables(table: str) -> None:
    """The reference, which all engines are compared with, agrees with the tables of other projects."""
    patterns, expected = AMQP_TABLES[table]
    for key, found in expected.items():
        words = AMQP.words(key)
        assert {pattern for pattern in patterns if matches(AMQP.words(pattern), words)} == found


def test_reference_agrees_with_the_routing_suite() -> None:
    """The reference agrees with RabbitMQ's 27 bindings, as written and in canonical form."""
    for key, found in SUITE_EXPECTED.items():
        words = AMQP.words(key)
        for split in (AMQP.words, lambda binding_key: AMQP.parse(binding_key).words):
            assert {number for number, bound in SUITE_BINDINGS.items() if matches(split(bound), words)} == found


@pytest.mark.parametrize("topic_filter", MQTT_FILTERS)
def test_reference_agrees_with_the_filters(topic_filter: str) -> None:
    """The reference agrees with the MQTT filters, whose words match like others."""
    matched, others = MQTT_FILTERS[topic_filter]
    pattern = MQTT.parse(topic_filter).words
    assert [topic for topic in matched + others if matches(pattern, MQTT.words(topic))] == matched


def test_pairwise_equals_the_reference() -> None:
    """Pairwise matching agrees for every pattern and key of up to four words, canonical or not."""
    patterns = [words for length in range(5) for words in product("ab*#", repeat=length)]
    keys = [words for length in range(5) for words in product("ab#", repeat=length)]
    for pattern in patterns:
        assert [words_match(pattern, key) for key in keys] == [matches(pattern, key) for key in keys], pattern


@pytest.mark.interpreted  # compiled code compares without a subclass's __eq__
def test_pairwise_looks_at_each_place_once_per_word_at_most() -> None:
    """Fifteen `#` between equal words do not multiply: word comparisons stay below patterns words times key words."""
    compared = 0

    class Word(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    key = [Word("a")] * 63 + [Word("b")]
    pattern = ["#", "a", "a"] * 15 + ["#", "c"]
    assert not words_match(pattern, key)
    assert 0 < compared <= len(pattern) * len(key)
