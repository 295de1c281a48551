"""docs/inverted-bitmap.md: the article's method gives the wrong answers of the page, the engine the right ones."""

import re
from pathlib import Path
from typing import Any

import pytest

from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.pattern import parse_pattern, split_words
from tests.property.topic_reference import matches
from tests.unit.routing.article_bitmap import ArticleBitmap

PAGE = Path(__file__).parents[3] / "docs" / "inverted-bitmap.md"


def rows(header: str) -> list[list[Any]]:
    """Return the cells of the table with this header: texts in code marks, or plain text if there are none."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition(header)
    lines = table.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [[re.findall(r"`([^`]+)`", cell) or cell.replace("none", "") for cell in line] for line in cells]


READINGS = rows("| bound, in this order |")
REMOVALS = rows("| bound | then unbound |")


def right(patterns: list[str], key: str) -> set[str]:
    """Return the patterns that match a key."""
    return {pattern for pattern in patterns if matches(pattern.split("."), split_words(key))}


def test_the_page_has_its_tables() -> None:
    """Both tables of the page are found, and every row has all its cells."""
    assert [len(row) for row in READINGS] == [5] * 15
    assert [len(row) for row in REMOVALS] == [6] * 2


@pytest.mark.parametrize(("bound", "keys", "should", "described", "reading"), READINGS)
def test_the_description_fails_as_the_page_says(
    bound: list[str], keys: list[str], should: list[str], described: list[str], reading: Any
) -> None:
    """The model of the article gives the page's wrong answers; the reference and the engine give the right ones."""
    model = ArticleBitmap(reading)
    engine: ConstituentBitmap[str] = ConstituentBitmap(literals_apart=False)
    for pattern in bound:
        model.add(pattern)
        engine.add(parse_pattern(pattern), pattern)
    assert right(bound, keys[0]) == set(should)
    assert model.match(keys[0]) == set(described) != set(should)
    assert set(engine.match(keys[0])) == set(should)


@pytest.mark.parametrize(("bound", "unbound", "again", "keys", "should", "described"), REMOVALS)
def test_removal_has_to_clear_every_row(
    bound: list[str], unbound: list[str], again: list[str], keys: list[str], should: list[str], described: list[str]
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
    assert right(held, keys[0]) == set(should)
    assert careless.match(keys[0]) == set(described) != set(should)
    assert model.match(keys[0]) == set(should)
    assert set(engine.match(keys[0])) == set(should)


@pytest.mark.parametrize("key", ["trade", "forex.eur", "forex.pound", "trade.x", "x"])
def test_the_model_is_right_where_the_article_is(key: str) -> None:
    """For the article's own patterns, and for `#` at the end with AND, the model is right."""
    patterns = ["trade", "forex.eur", "forex.*", "forex.#", "trade.#"]
    model = ArticleBitmap()
    for pattern in patterns:
        model.add(pattern)
    assert model.match(key) == right(patterns, key)
