"""The trie: its work per match and its memory after removals."""

import random

import pytest

from broker.routing.engines.trie import Trie
from broker.routing.pattern import canonical_words, parse_pattern


def fill(patterns: list[str]) -> Trie[str]:
    """Return a trie of canonical patterns, each with itself as the target."""
    trie: Trie[str] = Trie()
    for pattern in patterns:
        trie.add(parse_pattern(pattern), pattern)
    return trie


def test_hostile_hashes_cost_nodes_times_words() -> None:
    """Fifteen `#` against 31 equal words: C(46,15) paths, but each place is visited once per word."""
    pattern = ["#", "a"] * 15 + ["#"]
    trie: Trie[str] = Trie()
    trie.add(parse_pattern(".".join(pattern)), "hostile")
    trie.visited = 0
    assert "hostile" in trie.match(".".join(["a"] * 31))
    assert trie.visited <= 31 * 32
    trie.visited = 0
    assert trie.match(".".join(["a"] * 14)) == []
    assert trie.visited <= 31 * 15


def test_hostile_set_costs_nodes_times_words() -> None:
    """All patterns of fifteen places over `a`, `*` and `#`, with many branches, cost at most nodes x words."""
    source = random.Random(7)
    patterns = {tuple(canonical_words(source.choices(["a", "b", "*", "#", "#"], k=15))) for _ in range(300)}
    trie = fill(sorted(".".join(words) for words in patterns))
    nodes = len({words[:length] for words in patterns for length in range(len(words) + 1)})
    trie.visited = 0
    found = trie.match(".".join(["a"] * 127))
    assert trie.visited <= nodes * 128
    assert len(found) <= trie.visited


def test_removal_visits_its_own_pattern_only() -> None:
    """Beside 10,000 other patterns, a removal visits only the nodes of its own words."""
    others = [f"{first}.*.{second}.#" for first in range(100) for second in range(100)]
    trie = fill(others)
    for pattern in ["7.*.7.#.x", "*.7", "7.#.7.#"]:
        trie.add(parse_pattern(pattern), pattern)
        trie.visited = 0
        trie.remove(parse_pattern(pattern))
        assert trie.visited <= len(pattern.split(".")) + 1
    assert trie.size == 10_000
    assert trie.match("7.y.7.z") == ["7.*.7.#"]


def test_what_follows_one_hash_is_read_once() -> None:
    """Beside 1,000 patterns with a `#` before their last words, a key visits only the one with its last words."""
    trie = fill([f"a.#.{last}.x" for last in range(1000)])
    trie.visited = 0
    assert trie.match("a." + "b." * 60 + "7.x") == ["a.#.7.x"]
    assert trie.visited <= 6


def test_words_between_hashes_that_the_key_lacks_cost_one_look() -> None:
    """If no word of the key follows the first `#`, its later words are not tried individually."""
    trie = fill([f"#.{word}.#" for word in range(1000)])
    trie.visited = 0
    assert trie.match(".".join(["a"] * 60)) == []
    assert trie.visited <= 3
    assert trie.match("a.7.a.7") == ["#.7.#"]


@pytest.mark.parametrize(("start", "end", "key", "nodes"), [("*.", "", "x.7", 1), ("#.", ".z", "x.7.z", 2)])
def test_the_last_word_of_a_pattern_costs_no_node(start: str, end: str, key: str, nodes: int) -> None:
    """If a hundred patterns differ in the last word read, a key visits no node after that word."""
    trie = fill([f"{start}{number}{end}" for number in range(100)])
    assert trie.counts()["nodes"] == nodes
    trie.visited = 0
    assert trie.match(key) == [key.replace("x", start[0])]
    assert trie.match(key.replace("7", "y")) == []
    assert trie.visited <= 2 * (nodes + 1)


def test_a_pattern_without_a_node_makes_room_for_longer_ones() -> None:
    """Longer patterns pass through a last word that had no node, and none of them is taken for another."""
    trie = fill(["*.a", "*.b", "#.a.z", "#.b.z"])
    for stranger in ("*.a.#", "*.a.c", "*.c", "*", "#.a.a.z", "#.z", "*.a.*"):
        assert trie.find(parse_pattern(stranger)) is None
        with pytest.raises(KeyError):
            trie.remove(parse_pattern(stranger))
    for pattern in ("*.a", "#.a.z"):
        assert trie.add(parse_pattern(pattern), "another") == trie.find(parse_pattern(pattern)) == pattern
    for pattern in ("*.a.#", "*.a.c", "#.c.a.z"):
        assert trie.add(parse_pattern(pattern), pattern) is None
    assert trie.size == 7
    assert sorted(trie.match("x.a")) == ["*.a", "*.a.#"]
    assert sorted(trie.match("x.a.c")) == ["*.a.#", "*.a.c"]
    assert sorted(trie.match("c.a.z")) == ["#.a.z", "#.c.a.z", "*.a.#"]
    assert trie.match("b.z") == ["#.b.z"]


@pytest.mark.parametrize(
    "patterns",
    [
        ["#"],
        ["*"],
        ["a.#", "a.#.b"],
        ["#.a.#.b.c", "#.a.#", "#.a.#.c", "#.c"],
        ["a.#.b.*.c", "a.#.b.b.c"],
        ["*.*.#", "*.*", "*.b.#.c.#.d"],
        ["a.b.*.c", "a.b.*", "a.*"],
        ["*.a", "*.b", "*.a.c", "*.a.#"],
        ["*.a.#", "*.a.c", "*.a"],
        ["#.a.b", "#.c.b", "#.b", "#.b.c.b", "#.*.c.b"],
    ],
)
def test_nothing_is_left_after_the_removals(patterns: list[str]) -> None:
    """No node is left when all patterns are removed, in any order."""
    for order in (patterns, patterns[::-1]):
        trie = fill(patterns)
        for pattern in order:
            assert trie.size > 0
            trie.remove(parse_pattern(pattern))
        assert not any(trie.counts().values())
        assert trie.size == 0


@pytest.mark.parametrize("stranger", ["a", "a.b", "a.b.c.d", "b.b.*", "a.b.#", "#", "a.b.*.#"])
def test_removing_a_stranger_changes_nothing(stranger: str) -> None:
    """Removing an unknown pattern raises KeyError, also a prefix of a known one."""
    trie = fill(["a.b.*"])
    with pytest.raises(KeyError):
        trie.remove(parse_pattern(stranger))
    assert trie.match("a.b.c") == ["a.b.*"]
    assert trie.size == 1
