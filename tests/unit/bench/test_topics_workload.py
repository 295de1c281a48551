"""The patterns and keys that the topic index is measured with."""

from __future__ import annotations

from random import Random

import pytest

from bench.topics import hostile, workload
from broker.routing.pattern import HASH, PatternLimits, parse_pattern
from tests.property.topic_reference import matches


def test_patterns_are_distinct_wildcards_in_canonical_form() -> None:
    """Patterns have different matches and at least one wildcard, and each start of a draw gives the same draw."""
    drawn = workload.patterns(3000)
    parsed = [parse_pattern(text) for text in drawn]
    assert len({pattern.text for pattern in parsed}) == 3000
    assert not any(pattern.literal for pattern in parsed)
    assert [pattern.text for pattern in parsed] == drawn
    assert workload.patterns(100) == drawn[:100]


def test_wildcards_come_in_the_shares_of_the_article() -> None:
    """With at least one wildcard each, the drawn words have about a tenth as many hashes as stars."""
    words = [word for text in workload.patterns(20_000) for word in text.split(".")]
    stars, hashes = words.count("*"), words.count(HASH)
    assert 0.06 < hashes / stars < 0.14
    assert 0.2 < stars / len(words) < 0.35


def test_few_keys_meet_a_narrow_pattern() -> None:
    """The chances of all narrow patterns at 100,000 add up to about one in a hundred."""
    drawn = workload.narrow_patterns(2000)
    assert 0.002 < sum(map(workload.chance, drawn)) * 50 < 0.02
    assert all(len(text.split(".")) == 5 for text in drawn)


def test_chance_is_that_of_drawing_the_literal_words() -> None:
    """The chance of a pattern is the product over its literal words; wildcards do not matter."""
    assert workload.chance("w0_1.*.*.*.w4_0") == pytest.approx(1 / 20 / 5)
    assert workload.chance("*.w1_0.*.*.*") == pytest.approx(1 / 50)


def test_a_meeting_key_meets_its_pattern() -> None:
    """The key that is made for a pattern matches it."""
    random = Random(1)
    for text in workload.narrow_patterns(300):
        key = workload.meeting_key(text, random)
        assert matches(text.split("."), key.split("."))


def test_keys_are_distinct_and_of_the_length_asked_for() -> None:
    """Keys never repeat, and the shortest has the given number of words."""
    drawn = workload.keys(5000, shortest=5)
    assert len(set(drawn)) == 5000
    assert {len(key.split(".")) for key in drawn} == {5}
    assert {len(key.split(".")) for key in workload.keys(500)} == {3, 4, 5}


def test_hostile_families_are_within_the_limits_and_distinct() -> None:
    """A broker accepts every pattern of every family, and no two are equal."""
    for name, (texts, keys) in hostile.families(3000).items():
        parsed = {parse_pattern(text, PatternLimits()).text for text in texts}
        assert len(parsed) == len(texts) == 3000, name
        assert all(len(key.split(".")) == 64 for key in keys)


def test_star_runs_are_reached_and_never_match() -> None:
    """The worst family is searched everywhere and matches nothing, so none of its cost is for results."""
    texts, keys = hostile.families(50)["#.*.a.*.#"]
    assert not any(matches(text.split("."), key.split(".")) for text in texts for key in keys)
