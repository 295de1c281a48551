"""The trie: its work per match."""

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
