"""Patterns and keys that are made to be expensive: the maximal visits of one lookup, for each engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice, product

import pytest

from bench.topics.published_engines import ENGINES, make_engine
from broker.routing.index import TopicEngine
from broker.routing.pattern import AMQP, Pattern, PatternLimits, words_match
from tests.unit.routing.run_lines import TooMuchWork, run_lines

LINEAR = {"conventional", "split-once", "topic-words", "pattern-words", "plain-bitmap"}
"""Engines that look at all patterns by design, or at all with a `#`, or whenever a key is new."""

DEFAULT = PatternLimits()
LIFTED = PatternLimits(hashes=15)


@dataclass(frozen=True)
class Family:
    """Patterns of one kind, keys of up to 64 words, and the maximal number of visits per lookup.

    An engine that must visit more than others has its own cap: the places of a trie that a key reaches, and the states
    that a lazy automaton builds at the first lookup of a key, are at most nodes x words.
    """

    patterns: list[Pattern]
    keys: list[str]
    cap: int
    caps: dict[str, int]


def family(
    limits: PatternLimits, texts: set[str] | list[str], keys: list[str], cap: int, caps: dict[str, int] | None = None
) -> Family:
    """Return a family whose patterns are within the limits."""
    patterns = {text: AMQP.parse(text, limits) for text in sorted(texts)}
    return Family(list({pattern.text: pattern for pattern in patterns.values()}.values()), keys, cap, caps or {})


def drawn(count: int, draw: Callable[[], str]) -> set[str]:
    """Return this many distinct texts."""
    texts: set[str] = set()
    while len(texts) < count:
        texts.add(draw())
    return texts


@cache
def families() -> dict[str, Family]:
    """Return the families by name."""
    source = random.Random(3)

    def words(alphabet: str, count: int) -> str:
        return ".".join(source.choices(alphabet, k=count))

    letters = "abcdefghij"
    ends = [f"w{number}" for number in range(22)]
    return {
        "one word, anywhere": family(
            DEFAULT,
            [f"#.w{number}.#" for number in range(10_000)],
            [".".join(f"w{number}" for number in range(64)), ".".join(["x"] * 64), ".".join(["w5"] * 64)],
            cap=300,
            caps={"dfa": 4_000},
        ),
        "four words, anywhere": family(
            DEFAULT,
            [".".join(["#", *four, "#"]) for four in product(letters, repeat=4)],
            [words("ab", 64), words(letters, 64), words("a", 64)],
            cap=600,
            caps={"dfa": 4_000},
        ),
        "begin, middle and end": family(
            DEFAULT,
            [".#.".join(three) for three in islice(product(ends, repeat=3), 10_000)],
            [".".join(source.choices(ends, k=64)), f"w0.{'w1.' * 62}w2"],
            cap=300,
            caps={"dfa": 5_000},
        ),
        "13 words or stars": family(
            DEFAULT,
            [".".join([*start, "c"]) for start in product("a*", repeat=13)]
            + [".".join([*start, "d.e"]) for start in islice(product("a*", repeat=12), 1_809)],
            [f"{words('a', 13)}.b", f"{words('a', 13)}.c"],
            cap=300,
            caps={"trie": 20_000, "dfa": 40_000},
        ),
        "64 words or stars": family(
            DEFAULT,
            drawn(2_000, lambda: words("aaa*", 64)),
            [f"{words('a', 63)}.z", words("a", 64), words("*", 64)],
            cap=1_000,
            caps={"trie": 10_000, "dfa": 200_000},
        ),
        "long middles": family(
            DEFAULT,
            drawn(2_000, lambda: f"#.{words('aab*', 28)}.c.#.{words('aab*', 28)}.d"),
            [f"{words('a', 63)}.d", f"{words('ab', 63)}.d", f"{words('ab', 28)}.c.{words('ab', 34)}.d"],
            cap=1_000,
            caps={"trie": 60_000, "dfa": 60_000},
        ),
        "15 hashes": family(
            LIFTED,
            drawn(300, lambda: f"#.{'.#.'.join(source.choices('abc', k=15))}"),
            [words("abc", 64), words("a", 64), f"{'a.b.c.' * 21}d"],
            cap=1_000,
            caps={"trie": 300_000, "dfa": 400_000},
        ),
    }


def filled(title: str, name: str) -> TopicEngine[str]:
    """Return an engine with the patterns of a family, each with itself as the target."""
    engine: TopicEngine[str] = make_engine(name)
    for pattern in families()[title].patterns:
        engine.add(pattern, pattern.text)
    return engine


@cache
def expected(title: str, key: str) -> set[str]:
    """Return the patterns of a family that match a key."""
    words = AMQP.words(key)
    return {pattern.text for pattern in families()[title].patterns if words_match(pattern.words, words)}


@pytest.mark.parametrize("title", families())
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in LINEAR])
def test_hostile_families_cost_what_the_caps_say(name: str, title: str) -> None:
    """The first and the second lookup of a key find the right targets and stay within the cap.

    Targets are not found repeatedly either: the number of finds is proportional to the number of matches.
    """
    family = families()[title]
    engine = filled(title, name)
    for key in family.keys * 2:
        before = engine.visited
        found = engine.match(key)
        assert engine.visited - before <= family.caps.get(name, family.cap), key[:40]
        assert set(found) == expected(title, key), key[:40]
        assert len(found) <= 2 * len(expected(title, key)) + len(AMQP.words(key)), key[:40]


@pytest.mark.parametrize("title", list(families())[:4])
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in LINEAR])
def test_visits_tell_the_work(name: str, title: str) -> None:
    """The visits that an engine counts are proportional to the lines that it runs.

    A loop that is not counted would make the caps above meaningless.
    """
    engine = filled(title, name)
    for key in families()[title].keys:
        before = engine.visited
        found = engine.match(key)
        counted = engine.visited - before + len(found) + len(AMQP.words(key))
        run_lines(lambda key=key: engine.match(key), 40 * counted)  # type: ignore[misc]


def test_lines_are_counted() -> None:
    """The line counter of the test above sees every iteration of a loop, also within a comprehension."""
    assert 100 <= run_lines(lambda: {number % 7 for number in range(100)}, 1_000) <= 300
    with pytest.raises(TooMuchWork):
        run_lines(lambda: {number % 7 for number in range(100)}, 50)
