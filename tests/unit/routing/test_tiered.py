"""The tiers: which pattern is in which engine, and what a match costs."""

import pytest

from broker.routing.engines.tiered import Tiered, is_simple
from broker.routing.pattern import parse_pattern
from tests.unit.routing.run_lines import run_lines


def fill(engine: Tiered[str], keys: list[str]) -> None:
    """Add each key with itself as the target."""
    for key in keys:
        engine.add(parse_pattern(key), key)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a.*", True),
        ("*.*.*.*", True),
        ("*.*.*.#", True),
        ("*.*.*.*.*", True),
        ("*.*.*.*.#", True),
        ("*.*.*.*.*.a", False),
        ("a.*.*.*.*.#", False),
        ("#.a.#", True),
        ("x.#.a.b.#.y", True),
        ("#.a.*.#", False),
        ("#.a.#.b.#", False),
        ("a.b.c.d.e.f.g.*", True),
        ("a.b.c.d.e.f.g.h.*", False),
    ],
)
def test_tame_patterns_have_few_wildcards_and_words(key: str, expected: bool) -> None:
    """A tame pattern has at most eight words and four wildcards, and not two `#` beside a star."""
    assert is_simple(parse_pattern(key)) == expected


def test_tame_patterns_are_in_the_trie_and_the_others_in_the_bitmap() -> None:
    """Each pattern is in one engine alone, where it is found, matched and removed; a second removal is a KeyError."""
    engine: Tiered[str] = Tiered()
    tame, wild = [f"{number}.*" for number in range(20)], ["#.a.*.#", "*.*.*.*.b.*"]
    fill(engine, tame)
    assert (engine.counts()["nodes"], engine.counts()["columns"]) == (20, 0)
    fill(engine, wild)
    assert engine.counts()["columns"] > 0
    assert engine.match("3.a") == ["3.*"]
    assert engine.match("1.2.3.4.b.5") == ["*.*.*.*.b.*"]
    for key in tame + wild:
        assert engine.find(parse_pattern(key)) == key
        assert engine.remove(parse_pattern(key)) == key
        assert engine.match(key.replace("*", "x").replace("#", "x")) == []
        with pytest.raises(KeyError):
            engine.remove(parse_pattern(key))
    assert not any(engine.counts().values())


def test_the_first_match_after_many_additions_costs_no_more_than_others() -> None:
    """After 20,000 additions without a match, the first one visits and runs as much as one after it."""
    engine: Tiered[str] = Tiered()
    fill(engine, [f"{number % 100}.*.{number}" for number in range(20_000)])
    for key in ("7.x.107", "8.y.2308"):
        before = engine.visited
        found: list[str] = []
        run_lines(lambda key=key, found=found: found.extend(engine.match(key)), 150)  # type: ignore[misc]
        assert found == [key.replace("x", "*").replace("y", "*")]
        assert engine.visited - before <= 10


def test_long_patterns_of_wildcards_cost_a_row_a_word() -> None:
    """Three thousand patterns of thirteen words over a word and `*` cost one row per word of the key."""
    engine: Tiered[str] = Tiered()
    fill(engine, [".".join("*" if number >> bit & 1 else "a" for bit in range(13)) for number in range(1, 3000)])
    before = engine.visited
    assert len(engine.match(".".join(["a"] * 13))) == 2999
    assert engine.visited - before <= 13


def test_few_patterns_with_several_hashes_are_compared_by_their_middle() -> None:
    """A short key is compared with the patterns of its own words alone, and finds each once; a long key walks rows."""
    engine: Tiered[str] = Tiered()
    fill(engine, [f"#.m{number}.#" for number in range(1000)] + ["#.m7.#.z", "a.#.m7.#", "#.m7.*.#"])
    before = engine.visited
    assert sorted(engine.match("a.m7.m7.z")) == ["#.m7.#", "#.m7.#.z", "#.m7.*.#", "a.#.m7.#"]
    assert engine.visited - before == 4
    before = engine.visited
    assert engine.match("a.b.c.d") == []
    assert engine.visited - before == 0
    assert sorted(engine.match("m7.b.c.d.e.f.g.h.i.z")) == ["#.m7.#", "#.m7.#.z", "#.m7.*.#"]


def test_many_patterns_with_several_hashes_are_not_compared() -> None:
    """The 33rd pattern with one middle makes the tiers match; when one has gone, keys are compared again."""
    engine: Tiered[str] = Tiered()
    keys = [f"#.m.#.{number}" for number in range(40)]
    fill(engine, keys)
    assert engine.counts()["compared"] == 32
    for key in keys[::-1]:
        assert engine.match(f"x.m.y.{key.rsplit('.', 1)[1]}") == [key]
        assert engine.remove(parse_pattern(key)) == key
        assert engine.match(f"x.m.y.{key.rsplit('.', 1)[1]}") == []
    assert not any(engine.counts().values())
    fill(engine, keys[:3])
    before = engine.visited
    assert engine.match("m.2") == ["#.m.#.2"]
    assert engine.visited - before == 1


def test_a_key_is_compared_with_patterns_that_have_two_of_its_words() -> None:
    """Among thirty patterns with one middle, a key meets those with its other word, and those without another."""
    engine: Tiered[str] = Tiered()
    fill(engine, [f"{number}.#.m.#" for number in range(26)] + ["*.#.m.#", "#.m.#", "#.m.#.7", "#.m.7.#.8"])
    for key, compared, expected in (
        ("7.m", 5, ["#.m.#", "*.#.m.#", "7.#.m.#"]),
        ("m.x.7", 5, ["#.m.#", "#.m.#.7"]),
        ("x.m", 2, ["#.m.#", "*.#.m.#"]),
        ("#.m.#", 2, ["#.m.#", "*.#.m.#"]),
        ("7.x", 0, []),
    ):
        before = engine.visited
        assert sorted(engine.match(key)) == expected
        assert engine.visited - before == compared, key
