"""The linear engines: which texts each of them splits, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from bench.topics.published_engines import Conventional, SplitOnce
from broker.routing.pattern import AMQP, MQTT, Pattern, PatternLimits, TopicDialect


class Counting:
    """A dialect that counts how often each text is split."""

    def __init__(self, dialect: TopicDialect) -> None:
        self.dialect = dialect
        self.name = dialect.name
        self.split: list[str] = []

    def words(self, key: str) -> list[str]:
        """Count and split."""
        self.split.append(key)
        return self.dialect.words(key)

    def parse(self, key: str, limits: PatternLimits | None = None) -> Pattern:
        """Count and parse."""
        self.split.append(key)
        return self.dialect.parse(key, limits)


def filled(kind: type[Any], dialect: Counting, patterns: list[str]) -> Any:
    """Return an engine of this class with these patterns."""
    engine = kind(dialect)
    for text in patterns:
        engine.add(dialect.dialect.parse(text), text)
    assert dialect.split == []
    return engine


@pytest.mark.parametrize(
    ("dialect", "patterns", "key"), [(AMQP, ["a.*", "#.b", "b.c.*"], "a.b"), (MQTT, ["a/+", "+/b", "b/c/#"], "a/b")]
)
def test_conventional_splits_both_for_each_pair(dialect: TopicDialect, patterns: list[str], key: str) -> None:
    """With three binding keys, a message splits each of them once and its own key three times."""
    counting = Counting(dialect)
    engine = filled(Conventional, counting, patterns)
    assert engine.match(key) == patterns[:2]
    assert sorted(counting.split) == sorted([key] * 3 + patterns)
    assert engine.visited == 3
    engine.match(key)
    assert len(counting.split) == 12
    assert engine.visited == 6


@pytest.mark.parametrize(
    ("dialect", "patterns", "key"), [(AMQP, ["a.*", "#.b", "b.c.*"], "a.b"), (MQTT, ["a/+", "+/b", "b/c/#"], "a/b")]
)
def test_split_once_splits_the_key_alone(dialect: TopicDialect, patterns: list[str], key: str) -> None:
    """Patterns are split when added; a message splits its key once and tests it with each pattern."""
    counting = Counting(dialect)
    engine = filled(SplitOnce, counting, patterns)
    assert engine.match(key) == patterns[:2]
    assert counting.split == [key]
    assert engine.visited == 3
