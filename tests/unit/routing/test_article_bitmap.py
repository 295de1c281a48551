"""The bitmap article's description gives the wrong answers of these tables, the engine the right ones."""

from typing import Any, Final

import pytest

from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.pattern import parse_pattern, split_words
from tests.property.topic_reference import matches
from tests.unit.routing.article_bitmap import ArticleBitmap

READINGS: Final[list[tuple[list[str], str, list[str], list[str], str]]] = [
    (["x.y", "a.b.c"], "a", [], ["a.b.c"], "as written"),
    (["a.*"], "a", [], ["a.*"], "as written"),
    (["a.#"], "x.y.z", [], ["a.#"], "as written"),
    (["a.*"], "a.b.c", [], ["a.*"], "as written"),
    (["#.b.#"], "b.c.c", ["#.b.#"], [], "AND"),
    (["#.c"], "a.b.c", ["#.c"], [], "AND"),
    (["a.#.c"], "a.c", ["a.#.c"], [], "AND"),
    (["a.#.c"], "a.x.y.c", ["a.#.c"], [], "AND"),
    (["a.#.b"], "a.b", ["a.#.b"], [], "AND"),
    (["#.*.#"], "oneword", ["#.*.#"], [], "AND"),
    (["*.#.c"], "oneword", [], ["*.#.c"], "AND"),
    (["a.#", "x.y.z"], "a.b.c", ["a.#"], [], "AND"),
    (["forex", "forex.eur"], "forex.null", [], ["forex"], "AND"),
    (["forex.null"], "forex", [], ["forex.null"], "AND"),
    (["forex.other"], "forex.pound", [], ["forex.other"], "AND"),
]
"""Bound patterns in this order, a key, the right matches, those of the description, and how it reads other lengths."""
REMOVALS: Final[list[tuple[list[str], list[str], list[str], str, list[str], list[str]]]] = [
    (["a.b.#"], ["a.b.#"], ["a.b.c"], "a.b", [], ["a.b.c"]),
    (["x.y", "a.*"], ["a.*"], ["a.b"], "a.z", [], ["a.b"]),
]
"""Bound, then unbound, then bound patterns, a key, the right matches, those with only the own words' rows cleared."""


def right(patterns: list[str], key: str) -> set[str]:
    """Return the patterns that match a key."""
    return {pattern for pattern in patterns if matches(pattern.split("."), split_words(key))}


@pytest.mark.parametrize(("bound", "key", "should", "described", "reading"), READINGS)
def test_the_description_fails(
    bound: list[str], key: str, should: list[str], described: list[str], reading: Any
) -> None:
    """The model of the article gives these wrong answers; the reference and the engine give the right ones."""
    model = ArticleBitmap(reading)
    engine: ConstituentBitmap[str] = ConstituentBitmap(literals_apart=False)
    for pattern in bound:
        model.add(pattern)
        engine.add(parse_pattern(pattern), pattern)
    assert right(bound, key) == set(should)
    assert model.match(key) == set(described) != set(should)
    assert set(engine.match(key)) == set(should)


@pytest.mark.parametrize(("bound", "unbound", "again", "key", "should", "described"), REMOVALS)
def test_removal_has_to_clear_every_row(
    bound: list[str], unbound: list[str], again: list[str], key: str, should: list[str], described: list[str]
) -> None:
    """A reused position matches wrongly if any bit of its last pattern is left, and rightly otherwise."""
    careless, model = ArticleBitmap(clears_all=False), ArticleBitmap()
    engine: ConstituentBitmap[str] = ConstituentBitmap(literals_apart=False)
    for matcher in (careless, model):
        for pattern in bound:
            matcher.add(pattern)
        for pattern in unbound:
            matcher.remove(pattern)
        for pattern in again:
            matcher.add(pattern)
    for pattern in bound:
        engine.add(parse_pattern(pattern), pattern)
    for pattern in unbound:
        engine.remove(parse_pattern(pattern))
    for pattern in again:
        engine.add(parse_pattern(pattern), pattern)
    held = [pattern for pattern in bound if pattern not in unbound] + again
    assert right(held, key) == set(should)
    assert careless.match(key) == set(described) != set(should)
    assert model.match(key) == set(should)
    assert set(engine.match(key)) == set(should)


@pytest.mark.parametrize("key", ["trade", "forex.eur", "forex.pound", "trade.x", "x"])
def test_the_model_is_right_where_the_article_is(key: str) -> None:
    """For the article's own patterns, and for `#` at the end with AND, the model is right."""
    patterns = ["trade", "forex.eur", "forex.*", "forex.#", "trade.#"]
    model = ArticleBitmap()
    for pattern in patterns:
        model.add(pattern)
    assert model.match(key) == right(patterns, key)
