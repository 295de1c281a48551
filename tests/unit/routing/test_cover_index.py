"""The index of covering patterns: its answers, and the number of places that it visits."""

from itertools import product

import pytest

from broker.routing.cover_index import CoverIndex, covers
from broker.routing.pattern import parse_pattern


def fill(*keys: str) -> CoverIndex:
    """Return an index of binding keys."""
    index = CoverIndex()
    for key in keys:
        index.add(parse_pattern(key))
    return index


def test_one_pattern_has_no_place_of_its_own() -> None:
    """A place is a fork: it is created with the second pattern that passes it, and removed with that pattern."""
    index = fill("a.b.*.c")
    assert index.counts()["places"] == 0
    index.add(parse_pattern("a.b.*.d"))
    assert index.counts()["places"] == 3
    index.remove(parse_pattern("a.b.*.c"))
    assert index.counts()["places"] == 0
    assert index.covering(parse_pattern("a.b.x.d")) == parse_pattern("a.b.*.d")


def test_a_place_is_looked_at_once_a_word() -> None:
    """Nested `#` reach a place by many paths, and it is visited once per word."""
    stem = ["#", "a"] * 15
    index = fill(*(".".join([*stem, "#", end]) for end in "bc"))
    asked = parse_pattern(".".join(["a"] * 60))
    index.visited = 0
    assert index.covering(asked) is None
    assert index.visited <= (index.counts()["places"] + 1) * (len(asked.words) + 1)


def test_a_chain_of_stars_is_followed_once() -> None:
    """A `#` over stars that earlier words reached visits each of these places once."""
    index = fill(*(".".join(["#", "a", *["*"] * 30, end]) for end in "bc"))
    asked = parse_pattern(".".join([*["a"] * 31, "#", "c"]))
    index.visited = 0
    assert index.covering(asked) is None
    places = index.counts()["places"]
    assert places == 32
    assert index.visited <= places * (places + 1) // 2 + 2 * places


def test_a_pattern_is_compared_once() -> None:
    """A pattern that sixty words reach and that does not match is compared once."""
    index = fill("#.a.b.x", "#.a.b.y", "b")
    asked = parse_pattern(".".join(["a", "b"] * 30))
    index.visited = 0
    assert index.covering(asked) is None
    before = index.visited
    index.add(parse_pattern("#.a.c"))  # a leaf at the same place, which no word reaches
    index.visited = 0
    assert index.covering(asked) is None
    assert index.visited == before
    index.remove(parse_pattern("#.a.b.x"))  # leaves one leaf, which is compared at the fork: 30 times, or once
    index.visited = 0
    assert index.covering(asked) is None
    assert index.visited == before - 30 + 1


@pytest.mark.parametrize(
    ("held", "wider", "most"),
    [
        ("{0}.y.*.{1}", "*.new", 0),  # no pattern contains the word
        ("n{0}_{1}.b.*", "#.n3_5.b.#", 6),  # paths everywhere, and one pattern with the rarer word, at the start ...
        ("*.b.n{0}_{1}", "#.b.n3_5.#", 6),  # ... or at the end
        ("a{0}.b{1}.*.x", "a3.b5.#", 6),  # each word is in fifty patterns, but few paths match
    ],
)
def test_the_cheaper_way_to_the_covered_is_taken(held: str, wider: str, most: int) -> None:
    """Few of 2,500 patterns are visited, whether words or paths tell them apart."""
    index = fill(*(held.format(*numbers) for numbers in product(range(50), repeat=2)))
    index.visited = 0
    covered = index.covered(parse_pattern(wider))
    assert index.visited <= most
    assert [covers(parse_pattern(wider), pattern) for pattern in covered] == [True] * ("3" in wider)


def test_neither_way_costs_more_than_the_other_twice() -> None:
    """If words and paths both match everywhere, each pattern is compared once, after as many steps."""
    index = fill(*(f"{number}.x.*.{number}" for number in range(1_000)))
    index.visited = 0
    assert len(index.covered(parse_pattern("#.x.#"))) == 1_000
    assert index.visited <= 2_002
