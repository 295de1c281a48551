"""The constituent bitmap: the work per match, and its answers while tables grow and shrink."""

import random
from collections.abc import Sequence
from itertools import product

from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.index import footprint_bytes
from broker.routing.pattern import parse_pattern, split_words
from tests.property.topic_reference import matches


def fill(patterns: Sequence[str]) -> ConstituentBitmap[str]:
    """Return a bitmap of patterns, each with itself as the target."""
    engine: ConstituentBitmap[str] = ConstituentBitmap()
    for pattern in patterns:
        engine.add(parse_pattern(pattern), pattern)
    return engine


def right(patterns: Sequence[str], key: str) -> list[str]:
    """Return the patterns that match a key, sorted."""
    words = split_words(key)
    return sorted(pattern for pattern in patterns if matches(split_words(pattern), words))


def test_a_match_looks_at_rows_and_not_at_patterns() -> None:
    """A short key reads one row per word, whatever is bound; a long key as many rows as the patterns need."""
    engine = fill([f"{first}.*.{second}.x" for first in range(100) for second in range(100)])
    assert engine.match("7.y.9.x") == ["7.*.9.x"]
    assert engine.visited == 4
    for number in range(1000):
        engine.add(parse_pattern(f"{number}.#.x"), f"{number}.#.x")
    engine.visited = 0
    assert sorted(engine.match("7.y.9.x")) == ["7.#.x", "7.*.9.x"]
    assert engine.visited == 4
    engine.visited = 0
    assert engine.match("7.1.2.3.4.5.x") == ["7.#.x"]
    assert engine.visited == 1 + 1 + 1  # its length, the first word, the last word


def hostile() -> list[str]:
    """Return 10,935 canonical patterns with two and three `#` over two words and stars."""
    middles = [".".join(words) for words in product("ab*", repeat=7)]
    return [f"{start}.{middle}.#" for start in ("#.a", "#.b", "#.a.#.b", "#.b.#.a", "#.a.*.#.a") for middle in middles]


def test_hostile_patterns_cost_a_bounded_number_of_rows() -> None:
    """Ten thousand patterns like `#.a.#`, all of them candidates, cost a key of 64 words a few rows per word."""
    patterns = hostile()
    engine = fill(patterns)
    for key in (".".join(["b"] * 32 + ["a"] * 32), ".".join(["a", "b"] * 32), ".".join(["c"] * 63 + ["a"])):
        engine.visited = 0
        engine.match(key)
        assert engine.visited <= 64 * 2 + 1  # one table: 9 to 12 places are 12
    engine.visited = 0
    assert engine.match(".".join(["c"] * 64)) == []
    assert engine.visited == 1  # no word of the key follows a first `#`
    sample = random.Random(5).sample(patterns, 100)
    few = fill(sample)
    for key in (".".join(["b"] * 12 + ["a"] * 12), ".".join(["a", "b"] * 12), "b.a.a.b.a", "a"):
        assert sorted(few.match(key)) == right(sample, key)


def test_fifteen_hashes_are_followed_once() -> None:
    """Fifteen `#` against 31 equal words: C(46,15) paths, two rows per word."""
    engine = fill([".".join(["#", "a"] * 15 + ["#"])])
    assert len(engine.match(".".join(["a"] * 31))) == 1
    assert engine.visited == 2 * 31 + 1
    assert engine.match(".".join(["a"] * 14)) == []


def test_answers_are_the_references_while_tables_grow_and_shrink() -> None:
    """Answers stay right while up to 2,000 patterns come and go, rows appear and shrink, and columns move."""
    source = random.Random(2)
    words = ["a", "b", "c", "d", "", *(str(number) for number in range(12)), "*", "*", "*", "#"]
    engine = fill([])
    empty_bytes = footprint_bytes(engine)
    held: list[str] = []
    known: set[str] = set()
    peaks: list[dict[str, int]] = []
    for target in (2000, 300, 900, 0):
        while len(held) != target:
            if len(held) < target:
                pattern = parse_pattern(".".join(source.choices(words, k=source.randrange(6))))
                if pattern.text not in known:
                    engine.add(pattern, pattern.text)
                    held.append(pattern.text)
                    known.add(pattern.text)
            else:
                text = held.pop(source.randrange(len(held)))
                known.remove(text)
                assert engine.remove(parse_pattern(text)) == text
            if len(held) % 97 == 0:
                key = ".".join(source.choices(words, k=source.randrange(7)))
                assert sorted(engine.match(key)) == right(held, key)
        assert engine.size == target
        assert all(engine.find(parse_pattern(text)) == text for text in held)
        counts = dict(engine.counts())
        peaks.append(counts)
        assert counts["columns"] <= 3 * target  # several `#` take two columns; at most half of each kind are deleted
    assert peaks[0]["rows"] > 50
    assert peaks[0]["lists"] > 0
    assert peaks[1]["columns"] < peaks[0]["columns"]
    assert peaks[1]["rows"] < peaks[0]["rows"]
    assert not any(engine.counts().values())
    engine.visited = 0
    assert footprint_bytes(engine) == empty_bytes


def test_words_of_few_columns_among_many() -> None:
    """A word with seven of 2,500 columns finds the patterns that match the rest of the key, and stars."""
    patterns = [f"*.x.{number}.x" for number in range(2400)]
    patterns += [f"*.{word}.{number}.x" for word in range(20) for number in range(7)]
    engine = fill([*patterns, "*.*.3.x", "*.*.*.y"])
    table = engine._closed[4].side.tables[1]
    assert table.few.keys() == {str(word) for word in range(20)}
    assert table.dense.keys() == {"x"}
    assert sorted(engine.match("a.17.3.x")) == ["*.*.3.x", "*.17.3.x"]
    assert sorted(engine.match("a.17.6.x")) == ["*.17.6.x"]
    assert engine.match("a.17.7.x") == []
    assert engine.match("a.17.3.y") == ["*.*.*.y"]
