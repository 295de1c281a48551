"""The index of covering patterns: its answers, and how many places it looks at."""

import random
from itertools import product

import pytest

from broker.routing.cover_index import CoverIndex
from broker.routing.covering import CoverAutomaton, covers
from broker.routing.pattern import parse_pattern
from tests.property.covering_reference import short_patterns


def fill(*keys: str) -> CoverIndex:
    """Return an index of binding keys."""
    index = CoverIndex()
    for key in keys:
        index.add(parse_pattern(key))
    return index


@pytest.mark.parametrize("size", [1, 2, 5, 12, 40, 120])
def test_answers_are_those_of_comparing_all(size: int) -> None:
    """Sets of every density, half of each removed again, against each short pattern in both directions."""
    patterns = short_patterns()
    automata = {pattern: CoverAutomaton(pattern) for pattern in patterns}
    source = random.Random(size)
    for _ in range(max(5, 60 // size)):
        index = CoverIndex()
        held = source.sample(patterns, size)
        removed = source.sample(patterns, size)
        for pattern in (*held, *(pattern for pattern in removed if pattern not in held)):
            index.add(pattern)
        for pattern in removed:
            if pattern not in held:
                index.remove(pattern)
        assert len(index) == size
        for asked in patterns:
            covering = index.covering(asked)
            if covering is None:
                assert not any(automata[pattern].covers(asked) for pattern in held)
            else:
                assert covering in held
                assert automata[covering].covers(asked)
            covered = index.covered(asked)
            assert len(set(covered)) == len(covered)
            assert set(covered) == {pattern for pattern in held if automata[asked].covers(pattern)}


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        (["*.#"], "#.a"),
        (["*.*.#"], "#.a.#.b"),
        (["*.#.b", "*.#.c"], "#.a.c"),
        (["x", "*.*.#.b", "*.a"], "#.a.a.b"),
        (["a.*.*.#.b.c", "a.*.*.#.b.d"], "a.#.x.y.z.b.d"),
    ],
)
def test_stars_in_front_of_a_hash_are_paid_for_later(held: list[str], asked: str) -> None:
    """A `#` of the pattern asked for is taken by a `#` behind stars, which its later words use up."""
    assert fill(*held).covering(parse_pattern(asked)) is not None


def test_removals_give_everything_back() -> None:
    """Whatever the order, no place and no word is left."""
    patterns = short_patterns()
    for seed in range(5):
        index = CoverIndex()
        for pattern in patterns:
            index.add(pattern)
        random.Random(seed).shuffle(patterns)
        for left in range(len(patterns), 0, -1):
            assert len(index) == left
            index.remove(patterns[left - 1])
        assert not any(index.counts().values())
        assert len(index) == 0
        assert index.covering(parse_pattern("a")) is None


def test_one_pattern_has_no_place_of_its_own() -> None:
    """A place is a fork: it comes with the second pattern behind it, and goes with it."""
    index = fill("a.b.*.c")
    assert index.counts()["places"] == 0
    index.add(parse_pattern("a.b.*.d"))
    assert index.counts()["places"] == 3
    index.remove(parse_pattern("a.b.*.c"))
    assert index.counts()["places"] == 0
    assert index.covering(parse_pattern("a.b.x.d")) == parse_pattern("a.b.*.d")


def test_a_place_is_looked_at_once_a_word() -> None:
    """Fifteen `#`, one inside the other, lead to each place in many ways, and it is there once."""
    stem = ["#", "a"] * 15
    index = fill(*(".".join([*stem, "#", end]) for end in "bc"))
    asked = parse_pattern(".".join(["a"] * 60))
    index.visited = 0
    assert index.covering(asked) is None
    assert index.visited <= (index.counts()["places"] + 1) * (len(asked.words) + 1)


def test_a_chain_of_stars_is_followed_once() -> None:
    """A `#` leads over stars that earlier words have reached as well, and each of these places is there once."""
    index = fill(*(".".join(["#", "a", *["*"] * 30, end]) for end in "bc"))
    asked = parse_pattern(".".join([*["a"] * 31, "#", "c"]))
    index.visited = 0
    assert index.covering(asked) is None
    places = index.counts()["places"]
    assert places == 32
    assert index.visited <= places * (places + 1) // 2 + 2 * places


def test_a_pattern_is_compared_once() -> None:
    """Sixty words lead to the end of the same way, which does not fit."""
    index = fill("#.a.b.x", "#.a.b.y", "b")
    asked = parse_pattern(".".join(["a", "b"] * 30))
    index.visited = 0
    assert index.covering(asked) is None
    before = index.visited
    index.add(parse_pattern("#.a.c"))  # a leaf behind the same place, which no word leads to
    index.visited = 0
    assert index.covering(asked) is None
    assert index.visited == before
    index.remove(parse_pattern("#.a.b.x"))  # leaves one, which is compared where the ways part: 30 times, or once
    index.visited = 0
    assert index.covering(asked) is None
    assert index.visited == before - 30 + 1


@pytest.mark.parametrize(
    ("held", "wider", "most"),
    [
        ("{0}.y.*.{1}", "*.new", 0),  # no pattern names the word
        ("n{0}_{1}.b.*", "#.n3_5.b.#", 6),  # ways everywhere, and one pattern with the rarer word, be it the first ...
        ("*.b.n{0}_{1}", "#.b.n3_5.#", 6),  # ... or the last
        ("a{0}.b{1}.*.x", "a3.b5.#", 6),  # each word is in fifty patterns, but the way is narrow
    ],
)
def test_the_cheaper_way_to_the_covered_is_taken(held: str, wider: str, most: int) -> None:
    """Of 2,500 patterns few are looked at, be it their words or their ways that tell them apart."""
    index = fill(*(held.format(*numbers) for numbers in product(range(50), repeat=2)))
    index.visited = 0
    covered = index.covered(parse_pattern(wider))
    assert index.visited <= most
    assert [covers(parse_pattern(wider), pattern) for pattern in covered] == [True] * ("3" in wider)


def test_neither_way_costs_more_than_the_other_twice() -> None:
    """A word in every pattern, and ways everywhere: each pattern is compared once, and as much was walked before."""
    index = fill(*(f"{number}.x.*.{number}" for number in range(1_000)))
    index.visited = 0
    assert len(index.covered(parse_pattern("#.x.#"))) == 1_000
    assert index.visited <= 2_002
