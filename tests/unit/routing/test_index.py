"""The topic index against RabbitMQ's own tables, and its cost."""

import pytest

from broker.routing.destinations import Destinations
from broker.routing.engines.trie import Trie
from broker.routing.index import TopicIndex
from broker.routing.pattern import PatternLimits

# rabbitmq-server, routing_SUITE (topic_matching), with t24 as before the limit of two `#`
SUITE_BINDINGS = {
    1: "a.b.c",
    2: "a.*.c",
    3: "a.#.b",
    4: "a.b.b.c",
    5: "#",
    6: "#.#",
    7: "#.b",
    8: "*.*",
    9: "a.*",
    10: "*.b.c",
    11: "a.#",
    12: "a.#.#",
    13: "b.b.c",
    14: "a.b.b",
    15: "a.b",
    16: "b.c",
    17: "",
    18: "*.*.*",
    19: "vodka.martini",
    20: "a.b.c",
    21: "*.#",
    22: "#.*.#",
    23: "*.#.#",
    24: "#.#.#",
    25: "*",
    26: "#.b.#",
    27: "args-test",
}
SUITE_EXPECTED = {
    "a.b.c": {1, 2, 5, 6, 10, 11, 12, 18, 20, 21, 22, 23, 24, 26},
    "a.b": {3, 5, 6, 7, 8, 9, 11, 12, 15, 21, 22, 23, 24, 26},
    "a.b.b": {3, 5, 6, 7, 11, 12, 14, 18, 21, 22, 23, 24, 26},
    "": {5, 6, 17, 24},
    "b.c.c": {5, 6, 18, 21, 22, 23, 24, 26},
    "a.a.a.a.a": {5, 6, 11, 12, 21, 22, 23, 24},
    "vodka.gin": {5, 6, 8, 21, 22, 23, 24},
    "vodka.martini": {5, 6, 8, 19, 21, 22, 23, 24},
    "b.b.c": {5, 6, 10, 13, 18, 21, 22, 23, 24, 26},
    "nothing.here.at.all": {5, 6, 21, 22, 23, 24},
    "oneword": {5, 6, 21, 22, 23, 24, 25},
    "args-test": {5, 6, 21, 22, 23, 24, 25, 27},
}


def fill(index: TopicIndex, bindings: dict[int, str]) -> TopicIndex:
    """Return the index with these bindings added."""
    for destination, key in bindings.items():
        index.add(index.parse(key), destination)
    return index


def suite_index() -> TopicIndex:
    """Return an index with the suite's bindings, args-test bound twice."""
    index = fill(TopicIndex(), SUITE_BINDINGS)
    index.add(index.parse("args-test"), 27)
    return index


@pytest.mark.parametrize("key", SUITE_EXPECTED)
def test_routing_suite(key: str) -> None:
    """RabbitMQ's table of 27 bindings and 12 keys."""
    found = suite_index().match(key)
    assert set(found) == SUITE_EXPECTED[key]
    assert len(set(found)) == len(found)


def test_routing_suite_after_removals() -> None:
    """The suite's second half: six bindings go, the rest answers as before, then all go."""
    index = suite_index()
    for removed in (1, 5, 11, 19, 21, 27):
        index.remove(index.parse(SUITE_BINDINGS[removed]), removed)
    for key, destinations in SUITE_EXPECTED.items():
        assert set(index.match(key)) == destinations - {1, 5, 11, 19, 21}
    for destination in SUITE_BINDINGS.keys() - {1, 5, 11, 19, 21}:
        index.remove(index.parse(SUITE_BINDINGS[destination]), destination)
    for key in ("a.b.c", "b.b.c", ""):
        assert index.match(key) == ()


NEWER_SUITE = [
    (
        ["#.c", "#.b.c", "a.#.d", "#.*.#"],
        {
            "a.b.c": {"#.c", "#.b.c", "#.*.#"},
            "c": {"#.c", "#.*.#"},
            "x.y.b.c": {"#.c", "#.b.c", "#.*.#"},
            "a.d": {"a.#.d", "#.*.#"},
            "a.b.c.d": {"a.#.d", "#.*.#"},
            "x": {"#.*.#"},
            "x.c": {"#.c", "#.*.#"},
            "": set(),
        },
    ),
    (
        ["a.b.c", "a.b.*", "a.*.*", "a.b.#", "a.*.#", "*.b.c", "a.b"],
        {
            "a.b.c": {"a.b.c", "a.b.*", "a.*.*", "a.b.#", "a.*.#", "*.b.c"},
            "a.b": {"a.b", "a.b.#", "a.*.#"},
        },
    ),
    ([".#", ".*", ".*.a.b.c"], {".0.a.b.c": {".#", ".*.a.b.c"}}),
    # issues: rabbitmq-server 1383 and 14810, rabbitmq-website 317
    (["a.#.b"], {"a.b": {"a.#.b"}, "a..b": {"a.#.b"}, "a.x.b": {"a.#.b"}, "ab": set()}),
    (["#.*"], {"..": {"#.*"}, "": set()}),
    (["audit.events.#"], {"audit.events": {"audit.events.#"}}),
    # LavinMQ's specification
    (["#.a"], {"a.a.b": set(), "a.a.a": {"#.a"}}),
    (["#.a.a.a"], {"a.a.b.a.a": set(), "a.a.a": {"#.a.a.a"}}),
    (["#.a.b.c"], {"a.a.a.a.b.c": {"#.a.b.c"}}),
    (["#.*.d"], {"a.d.a": set(), "a.a.d": {"#.*.d"}}),
    (["#.a.#"], {"b.b.a.b.b": {"#.a.#"}}),
    (["a.*.c.#"], {"a.b.c": {"a.*.c.#"}, "a.b.c.d": {"a.*.c.#"}, "a.b.c.d.e": {"a.*.c.#"}}),
    (["c.*"], {"c.a.d": set()}),
    # words are compared, not bytes or case
    (["straße.*.日本", "*.é"], {"straße.x.日本": {"straße.*.日本"}, "Straße.x.日本": set(), "x.é": {"*.é"}}),
    # wildcard characters in a published key are ordinary words
    (["a.*", "a.b", "#.c"], {"a.*": {"a.*"}, "a.#": {"a.*"}, "*.b": set(), "#": set(), "*.c": {"#.c"}}),
]


@pytest.mark.parametrize(("patterns", "expected"), NEWER_SUITE, ids=lambda value: "-".join(value)[:40])
def test_topic_exchange_suite(patterns: list[str], expected: dict[str, set[str]]) -> None:
    """RabbitMQ's newer suite, its issues, and what LavinMQ asks."""
    index = TopicIndex()
    for pattern in patterns:
        index.add(index.parse(pattern), pattern)
    assert {key: set(index.match(key)) for key in expected} == expected


def test_twenty_six_levels() -> None:
    """A pattern of 26 words, then `#`, then `*`, and 26 stars followed by `#`."""
    levels = ".".join("abcdefghijklmnopqrstuvwxyz")
    index = TopicIndex()
    for pattern in (f"{levels}.#", f"{levels}.*", ".".join("*" * 26) + ".#"):
        index.add(index.parse(pattern), pattern[-2:] + pattern[0])
    assert set(index.match(levels)) == {".#a", ".#*"}
    assert set(index.match(f"{levels}.x")) == {".#a", ".*a", ".#*"}
    assert index.match(levels[:-2]) == ()


def test_fifteen_hashes_against_thirty_one_words() -> None:
    """With the limit lifted, RabbitMQ's hostile pattern is found with bounded work."""
    trie: Trie[Destinations] = Trie()
    index = TopicIndex(trie, PatternLimits(hashes=15))
    index.add(index.parse(".".join(["#", "a"] * 15)), "q")
    trie.visited = 0
    assert index.match(".".join(["a"] * 31)) == ("q",)
    assert index.match(".".join(["a"] * 30 + ["b"])) == ()
    assert trie.visited <= 2 * 31 * 32


def test_equal_canonical_patterns_are_counted() -> None:
    """A destination bound by `#.#` and `#` stays until both are gone."""
    index = TopicIndex()
    assert index.add(index.parse("#.#"), "q")
    assert not index.add(index.parse("#"), "q")
    assert not index.remove(index.parse("#.#"), "q")
    assert index.match("x") == ("q",)
    assert index.remove(index.parse("#"), "q")
    assert index.match("x") == ()


@pytest.mark.parametrize("key", ["a.b", "a.*", "#.a.#"])
def test_removing_what_is_not_bound_raises(key: str) -> None:
    """Neither an unknown key nor an unknown destination of a known key passes silently."""
    index = TopicIndex()
    with pytest.raises(KeyError):
        index.remove(index.parse(key), "q")
    index.add(index.parse(key), "q")
    with pytest.raises(KeyError):
        index.remove(index.parse(key), "other")


@pytest.mark.parametrize("key", ["news.*.today", "news.#", "news.today"])
def test_many_destinations_of_one_key(key: str) -> None:
    """20,000 destinations on one key: only the first and the last touch the engine; each goes without the others."""
    trie: Trie[Destinations] = Trie()
    index = TopicIndex(trie)
    pattern = index.parse(key)
    for destination in range(20_000):
        index.add(pattern, destination)
    assert trie.visited <= 4
    assert index.match("news.x.today" if "*" in key else "news.today") == tuple(range(20_000))
    trie.visited = 0
    for destination in reversed(range(20_000)):
        index.remove(pattern, destination)
    assert trie.visited <= 4
    assert not any(trie.counts().values())
    assert len(index) == 0


def test_lifecycle_leaves_nothing() -> None:
    """After all removals, in an order unlike that of the adds, every structure is empty."""
    trie: Trie[Destinations] = Trie()
    index = fill(TopicIndex(trie), SUITE_BINDINGS)
    for destination in sorted(SUITE_BINDINGS, key=lambda number: number * 17 % 27):
        index.remove(index.parse(SUITE_BINDINGS[destination]), destination)
    assert not any(trie.counts().values())
    assert len(trie) == 0
    assert len(index) == 0


def test_removal_is_not_a_scan() -> None:
    """Beside 10,000 other bindings a removal visits the nodes of its own pattern."""
    trie: Trie[Destinations] = Trie()
    index = TopicIndex(trie)
    for number in range(10_000):
        index.add(index.parse(f"{number % 100}.*.{number // 100}.#"), number)
    index.add(index.parse("5.*.5.x.#"), "mine")
    trie.visited = 0
    index.remove(index.parse("5.*.5.x.#"), "mine")
    assert trie.visited <= 6
