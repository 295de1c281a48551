"""The engines that intersect, per level, the patterns that fit a word."""

from __future__ import annotations

import pytest

from bench.topics.published_engines import PatternWords, TopicWords
from broker.routing.pattern import AMQP


def add(engine: TopicWords[str] | PatternWords[str], *patterns: str) -> None:
    """Add patterns, each with itself as the target."""
    for text in patterns:
        engine.add(AMQP.parse(text), text)


def visited(engine: TopicWords[str] | PatternWords[str], key: str) -> int:
    """Return how many patterns one lookup visits."""
    before = engine.visited
    engine.match(key)
    return engine.visited - before


@pytest.mark.parametrize("kind", [TopicWords, PatternWords])
def test_hash_patterns_are_a_residue(kind: type[TopicWords[str] | PatternWords[str]]) -> None:
    """Patterns with `#` are counted apart and visited by every lookup, others only by keys of their length."""
    engine = kind()
    add(engine, "a.#", "#.b", "a.*", "*.*.c", "")
    assert engine.counts()["patterns"] == 2
    assert engine.counts()["residue"] == 3
    assert sorted(engine.match("a.b")) == ["#.b", "a.#", "a.*"]
    assert visited(engine, "x.x.x.x") == 3
    assert engine.match("") == [""]


def test_topic_words_are_scanned_for_once() -> None:
    """A new word of a level costs the patterns of that length; a known word only those that fit."""
    engine: TopicWords[str] = TopicWords()
    add(engine, *(f"a.{number}.*" for number in range(50)), *(f"b.{number}" for number in range(50)))
    assert visited(engine, "a.1.x") == 50 + 50 + 50 + 1 + 1
    assert engine.counts() == {"patterns": 100, "residue": 0, "words": 3, "fits": 50 + 1 + 50}
    assert visited(engine, "a.1.x") == 2
    assert visited(engine, "a.2.x") == 50 + 2  # its only new word is "2"
    assert engine.match("a.2.x") == ["a.2.*"]


def test_topic_words_that_nothing_fits_end_a_look_up() -> None:
    """The first word without a pattern is cached, and the words after it are not visited."""
    engine: TopicWords[str] = TopicWords()
    add(engine, "a.b.*", "a.*.c")
    assert visited(engine, "x.b.c") == 2
    assert visited(engine, "x.b.c") == 0
    assert engine.counts()["words"] == 1


def test_cached_topic_words_follow_the_patterns() -> None:
    """A new pattern joins the cached words that fit, a star all words of its level; a removed one leaves them."""
    engine: TopicWords[str] = TopicWords()
    add(engine, "a.*")
    for key in ("a.b", "a.c", "b.b"):
        engine.match(key)
    add(engine, "a.b", "*.c", "*.*")
    scanned = engine.visited
    assert sorted(engine.match("a.b")) == ["*.*", "a.*", "a.b"]
    assert sorted(engine.match("a.c")) == ["*.*", "*.c", "a.*"]
    assert engine.match("b.b") == ["*.*"]
    engine.remove(AMQP.parse("*.*"))
    assert sorted(engine.match("a.b")) == ["a.*", "a.b"]
    assert engine.match("b.b") == []
    assert engine.counts()["words"] == 4
    assert engine.visited - scanned < 20  # none of them is scanned again


@pytest.mark.parametrize("cache_entries", [0, 1, 7, 40])
def test_the_words_cached_are_bounded(cache_entries: int) -> None:
    """The cache of words is bounded, also with stars that join each; the answers stay right."""
    engine: TopicWords[str] = TopicWords(cache_entries=cache_entries)
    add(engine, *(f"a.{number}" for number in range(5)), "*.*")
    for number in range(100):
        assert sorted(engine.match(f"a.{number}")) == (["*.*", f"a.{number}"] if number < 5 else ["*.*"])
        add(engine, f"*.{number}.x", f"*.new{number}")
        counts = engine.counts()
        assert counts["words"] + counts["fits"] <= cache_entries
        assert counts["words"] >= 0
        assert counts["fits"] >= 0
    assert engine.counts()["patterns"] == 206


def test_the_words_cached_go_with_the_last_pattern_of_their_length() -> None:
    """Words of keys that no pattern can match are not cached."""
    engine: TopicWords[str] = TopicWords()
    add(engine, "a.*", "*.*.c")
    engine.match("a.b")
    engine.match("a.b.c")
    engine.match("a.b.c.d")
    engine.remove(AMQP.parse("a.*"))
    assert engine.counts() == {"patterns": 1, "residue": 0, "words": 3, "fits": 3}
    assert engine.match("a.b") == []
    assert engine.counts()["words"] == 3


def test_pattern_words_need_no_message_first() -> None:
    """Each pattern is indexed by its words when added, and a lookup leaves no trace."""
    engine: PatternWords[str] = PatternWords()
    add(engine, *(f"a.{number}.*" for number in range(50)), "*.1.x")
    counts = engine.counts()
    assert counts == {"patterns": 51, "residue": 0, "words": 2 + 50 + 2}
    assert sorted(engine.match("a.1.x")) == ["*.1.x", "a.1.*"]
    for number in range(100):
        engine.match(f"{number}.b.c")
        engine.match(f"a.{number}.c.*")
    assert engine.counts() == counts


def test_pattern_words_begin_with_the_rarest() -> None:
    """The other levels visit only the two patterns that fit the rarest word."""
    engine: PatternWords[str] = PatternWords()
    add(engine, *(f"a.{number}.*" for number in range(500)), "*.1.x")
    assert visited(engine, "a.1.x") == 2 + 2
    assert visited(engine, "a.none.x") == 0


@pytest.mark.parametrize("kind", [TopicWords, PatternWords])
def test_what_comes_and_goes_beside_others_leaves_nothing(kind: type[TopicWords[str] | PatternWords[str]]) -> None:
    """Removing a pattern removes its own words and lengths, while others of the same length and words stay."""
    engine = kind()
    add(engine, "a.*", "*.b", "#.c")
    counts = dict(engine.counts())
    for text in ("a.x", "*.x", "x.*.c", "*.*.*.*", "x.#"):
        add(engine, text)
        engine.remove(AMQP.parse(text))
        assert engine.counts() == counts
        assert set(engine._lengths) == {2}
