"""Rules for every engine: unusual keys, lookups without a trace, and results that are the caller's."""

from __future__ import annotations

import random

import pytest

from bench.topics.published_engines import ENGINES, make_engine
from broker.routing.index import TopicEngine, footprint_bytes
from broker.routing.pattern import AMQP, DIALECTS, Pattern, TopicDialect
from tests.property.topic_reference import matches

pytestmark = pytest.mark.parametrize("name", ENGINES)

CACHING = {"topic-words", "plain-bitmap", "dfa"}
"""Engines that are a cache of what messages asked for; their own tests hold them to its bound."""


SEPARATORS = {"amqp": ".", "mqtt": "/"}


def filled(name: str, patterns: list[Pattern], dialect: TopicDialect = AMQP) -> TopicEngine[str]:
    """Return an engine with these patterns, each with itself as the target."""
    engine: TopicEngine[str] = make_engine(name, dialect)
    for pattern in patterns:
        engine.add(pattern, pattern.text)
    return engine


def wildcards(count: int, seed: int) -> list[Pattern]:
    """Return this many distinct patterns of three to five words, each with at least one wildcard."""
    source = random.Random(seed)
    patterns: dict[str, Pattern] = {}
    while len(patterns) < count:
        words = [f"{level}{source.randrange(size)}" for level, size in zip("pqrst", (6, 10, 90, 9, 4), strict=True)]
        words = words[: source.randint(3, 5)]
        words[source.randrange(len(words))] = "*"
        if source.random() < 0.2:
            words[source.randrange(len(words))] = "#"
        elif source.random() < 0.2:
            words = ["#", words[1], words[2], "#"]
        pattern = AMQP.parse(".".join(words))
        patterns[pattern.text] = pattern
    return list(patterns.values())


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_keys_at_the_edge(name: str, dialect: TopicDialect) -> None:
    """Keys of 256 words, empty or not, words of 255 characters and patterns of 64 words match as in the reference."""
    separator = SEPARATORS[dialect.name]
    longest, deep = "x" * 255, separator.join(["a"] * 63)
    many = separator * 255
    texts = [
        "#", "*", "*.*", "*.#", ".#", "a.#", longest, f"*.{longest[:200]}", "*." * 63 + "*", "*." * 63 + "#", "a.*.#",
        ".*.." + "*." * 59 + "#", "*.a." * 31 + "*.a", "*.a." * 31 + "#",
    ]  # fmt: skip
    if dialect is AMQP:
        texts += ["", "#.a", "#.", f"#.{longest[:100]}.#", "a.#.a", ".#.", "#.a.#.b", "#.." + "*." * 60, "a.#.*.a"]
        texts += [".".join(["#", "a"] * 31) + ".#", ".".join(["#", ""] * 31), "*.#." + ".".join(["a"] * 61) + ".#.a"]
    else:
        texts = [text.replace(".", "/").replace("*", "+") for text in texts]
    patterns = [dialect.parse(text) for text in dict.fromkeys(texts)]
    engine = filled(name, list({pattern.text: pattern for pattern in patterns}.values()), dialect)
    keys = [
        "", separator, many, f"{many}a", f"a{many}", f"a{many[2:]}a", longest, f"{longest[:200]}{separator}x", deep,
        f"{deep}{separator}a", f"{deep}{separator}b", f"{deep}{separator}a{separator}b", separator.join(["a"] * 128),
        separator.join("ab" * 32), separator.join("ba" * 32), separator.join(["a", longest[:100], "b"]), "*", "#",
        separator.join(["*"] * 64), separator.join(["#"] * 64), separator.join("#a" * 31 + "#"), "\x00", "\ud800",
        "é" * 127,
    ]  # fmt: skip
    for key in keys:
        words = dialect.words(key)
        expected = {pattern.text for pattern in patterns if matches(pattern.words, words)}
        assert set(engine.match(key)) == expected, key[:40]
    for pattern in reversed(patterns):
        assert engine.remove(pattern) == pattern.text
    assert not any(engine.counts().values())


def test_look_ups_leave_nothing(name: str) -> None:
    """Looking up unknown keys, or removing unknown patterns, leaves no row, node or table."""
    engine = filled(name, wildcards(300, seed=1))
    engine.match("p1.q1.r1")
    counts, held_bytes = dict(engine.counts()), footprint_bytes(engine)
    for pattern in wildcards(300, seed=2):
        if engine.find(pattern) is None:
            with pytest.raises(KeyError):
                engine.remove(pattern)
    assert engine.counts() == counts
    assert footprint_bytes(engine) <= held_bytes + 128
    if name in CACHING:
        return
    for number in range(500):
        engine.match(f"p{number % 7}.new{number}.r{number}.s1.t1")
        engine.match(f"p1.q1.r1.s{number}")
    assert engine.counts() == counts
    assert footprint_bytes(engine) <= held_bytes + 128  # `visited` may need a few more bytes


def test_a_result_is_the_callers(name: str) -> None:
    """TopicIndex appends to the result, which must not affect the next lookup."""
    engine = filled(name, [AMQP.parse(text) for text in ("a.*", "#", "a.b")])
    for key in ("a.b", "a.b", "x", "x"):
        found = engine.match(key)
        expected = ["#", "a.*", "a.b"] if key == "a.b" else ["#"]
        assert sorted(found) == expected
        found.append("mine")


def test_targets_are_told_apart_by_identity(name: str) -> None:
    """Targets that are equal, falsy or unhashable are kept apart."""
    targets: dict[str, list[int]] = {text: [] for text in ("a.*", "*.b", "#", "a.#.b", "#.b.#", "a.b")}
    engine: TopicEngine[list[int]] = make_engine(name)
    for text, target in targets.items():
        engine.add(AMQP.parse(text), target)
    assert {id(target) for target in engine.match("a.b")} == {id(target) for target in targets.values()}
    for text, target in targets.items():
        assert engine.find(AMQP.parse(text)) is target
        assert engine.remove(AMQP.parse(text)) is target
