"""The patterns and keys that the topic index is measured with."""

from __future__ import annotations

from bench.topics import workload
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


def test_keys_are_distinct_and_have_three_to_five_words() -> None:
    """Keys never repeat."""
    drawn = workload.keys(5000)
    assert len(set(drawn)) == 5000
    assert {len(key.split(".")) for key in drawn} == {3, 4, 5}


def test_hostile_families_are_within_the_limits_and_distinct() -> None:
    """A broker accepts every pattern of every family, and no two are equal."""
    for name, (texts, keys) in workload.hostile_families(3000).items():
        parsed = {parse_pattern(text, PatternLimits()).text for text in texts}
        assert len(parsed) == len(texts) == 3000, name
        assert all(len(key.split(".")) == 64 for key in keys)


def test_star_runs_are_reached_and_never_match() -> None:
    """The worst family is searched everywhere and matches nothing, so none of its cost is for results."""
    texts, keys = workload.hostile_families(50)["#.*.a.*.#"]
    assert not any(matches(text.split("."), key.split(".")) for text in texts for key in keys)
