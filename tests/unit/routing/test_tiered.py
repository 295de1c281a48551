"""The tiers: which pattern is in which engine, how patterns migrate, and that none is lost."""

import pytest

from broker.routing.engines import tiers
from broker.routing.engines.tiered import Tiered
from broker.routing.engines.tiers import is_tame
from broker.routing.pattern import parse_pattern
from tests.unit.routing.run_lines import run_lines


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Tiered[str]:
    """Provide an engine whose bitmap takes ten tame patterns."""
    monkeypatch.setattr(tiers, "BITMAP_MOST", 10)
    return Tiered()


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
    assert is_tame(parse_pattern(key)) == expected


@pytest.mark.skipif(str(tiers.__file__).endswith(".so"), reason="a compiled constant cannot be changed")
def test_tame_patterns_change_over_two_at_a_time(small: Tiered[str]) -> None:
    """The eleventh pattern goes to the trie and takes two along, until only wild ones are in the bitmap."""
    wild = ["#.a.*.#", "*.*.*.*.b.*"]
    keys = [f"{number}.*" for number in range(20)]
    fill(small, wild + keys[:10])
    assert (small.counts()["movable"], small.counts()["nodes"]) == (10, 0)
    for added, key in enumerate(keys[10:], 1):
        fill(small, [key])
        assert small.counts()["movable"] == max(0, 10 - 2 * added)
        assert all(small.find(parse_pattern(known)) == known for known in wild + keys[: 10 + added])
        assert sorted(small.match("3.a")) == ["3.*"]
    for key in wild + keys:
        assert small.remove(parse_pattern(key)) == key
    assert not any(small.counts().values())


@pytest.mark.skipif(str(tiers.__file__).endswith(".so"), reason="a compiled constant cannot be changed")
def test_what_is_removed_while_changing_over_is_gone(small: Tiered[str]) -> None:
    """A pattern is found and removed in both tiers; a second removal is a KeyError."""
    keys = [f"{number}.*" for number in range(13)]
    fill(small, keys)
    assert 0 < small.counts()["movable"] < 10
    for key in keys:
        small.remove(parse_pattern(key))
        assert small.match(key.replace("*", "x")) == []
        with pytest.raises(KeyError):
            small.remove(parse_pattern(key))
    assert not any(small.counts().values())


def test_the_first_match_after_many_additions_costs_no_more_than_others() -> None:
    """After 20,000 additions without a match, the first one visits and runs as much as one after it."""
    engine: Tiered[str] = Tiered()
    fill(engine, [f"{number % 100}.*.{number}" for number in range(20_000)])
    for key in ("7.x.107", "8.y.2308"):
        engine.visited = 0
        found: list[str] = []
        run_lines(lambda key=key, found=found: found.extend(engine.match(key)), 150)  # type: ignore[misc]
        assert found == [key.replace("x", "*").replace("y", "*")]
        assert engine.visited <= 10


def test_long_patterns_of_wildcards_cost_a_row_a_word() -> None:
    """Three thousand patterns of thirteen words over a word and `*` cost one row per word of the key."""
    engine: Tiered[str] = Tiered()
    fill(engine, [".".join("*" if number >> bit & 1 else "a" for bit in range(13)) for number in range(1, 3000)])
    engine.visited = 0
    assert len(engine.match(".".join(["a"] * 13))) == 2999
    assert engine.visited <= 13


def test_few_patterns_with_several_hashes_are_compared_by_their_middle() -> None:
    """A short key is compared with the patterns of its own words alone, and finds each once; a long key walks rows."""
    engine: Tiered[str] = Tiered()
    fill(engine, [f"#.m{number}.#" for number in range(1000)] + ["#.m7.#.z", "a.#.m7.#", "#.m7.*.#"])
    engine.visited = 0
    assert sorted(engine.match("a.m7.m7.z")) == ["#.m7.#", "#.m7.#.z", "#.m7.*.#", "a.#.m7.#"]
    assert engine.visited == 4
    engine.visited = 0
    assert engine.match("a.b.c.d") == []
    assert engine.visited == 0
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
    engine.visited = 0
    assert engine.match("m.2") == ["#.m.#.2"]
    assert engine.visited == 3
