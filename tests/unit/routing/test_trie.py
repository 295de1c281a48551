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
    assert len(trie) == 10_000
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
    ],
)
def test_nothing_is_left_after_the_removals(patterns: list[str]) -> None:
    """No node is left when all patterns are removed, in any order."""
    for order in (patterns, patterns[::-1]):
        trie = fill(patterns)
        for pattern in order:
            assert len(trie) > 0
            trie.remove(parse_pattern(pattern))
        assert not any(trie.counts().values())
        assert len(trie) == 0


@pytest.mark.parametrize("stranger", ["a", "a.b", "a.b.c.d", "b.b.*", "a.b.#", "#", "a.b.*.#"])
def test_removing_a_stranger_changes_nothing(stranger: str) -> None:
    """Removing an unknown pattern raises KeyError, also a prefix of a known one."""
    trie = fill(["a.b.*"])
    with pytest.raises(KeyError):
        trie.remove(parse_pattern(stranger))
    assert trie.match("a.b.c") == ["a.b.*"]
    assert len(trie) == 1
