"""The engines of articles: the work of a lookup that each is published for, and caches within their bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from bench.topics.published_engines import ENGINES, PatternWords, PlainBitmap, TopicWords
from broker.routing.pattern import AMQP


def filled(engine: Any, patterns: Iterable[str]) -> Any:
    """Return the engine with these patterns, each with itself as the target."""
    for text in patterns:
        engine.add(AMQP.parse(text), text)
    return engine


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("conventional", 100, 100),
        ("split-once", 100, 100),
        ("topic-words", 50 + 50 + 50 + 1 + 1, 2),
        ("pattern-words", 1 + 1, 1 + 1),
        ("plain-bitmap", 100, 1),
    ],
)
def test_a_lookup_costs_what_its_article_says(name: str, first: int, again: int) -> None:
    """Linear engines visit every pattern, caches do so for a new key, and others what fits the rarest word."""
    engine = filled(ENGINES[name](), [f"a.{n}.*" for n in range(50)] + [f"b.{n}" for n in range(50)])
    for most in (first, again):
        before = engine.visited
        assert engine.match("a.1.x") == ["a.1.*"]
        assert engine.visited - before == most


@pytest.mark.parametrize("cache_entries", [0, 1, 7, 40])
def test_the_words_cached_are_bounded(cache_entries: int) -> None:
    """The cache of words is bounded, also with stars that join each; the answers stay right."""
    engine: TopicWords[str] = filled(TopicWords(cache_entries=cache_entries), [*(f"a.{n}" for n in range(5)), "*.*"])
    for number in range(100):
        assert sorted(engine.match(f"a.{number}")) == (["*.*", f"a.{number}"] if number < 5 else ["*.*"])
        filled(engine, [f"*.{number}.x", f"*.new{number}"])
        counts = engine.counts()
        assert 0 <= counts["words"] + counts["fits"] <= cache_entries


def test_the_rows_cached_are_bounded() -> None:
    """Neither new keys nor new patterns let the rows grow beyond the limit, and the answers stay right."""
    engine: PlainBitmap[str] = filled(PlainBitmap(bits_most=400), ["a.*"])
    for number in range(1000):
        assert engine.match(f"a.{number % 30}") == ["a.*"]
        if number % 20 == 0:
            filled(engine, [f"b.{number}"])
        counts = engine.counts()
        assert counts["rows"] * counts["columns"] <= 400


@pytest.mark.parametrize("kind", [TopicWords, PatternWords])
def test_what_comes_and_goes_leaves_nothing(kind: type[Any]) -> None:
    """Removing a pattern removes its own words, while others of the same length and words stay."""
    engine = filled(kind(), ["a.*", "*.b", "#.c"])
    counts = dict(engine.counts())
    for text in ("a.x", "*.x", "x.*.c", "*.*.*.*", "x.#"):
        filled(engine, [text]).remove(AMQP.parse(text))
        assert engine.counts() == counts
