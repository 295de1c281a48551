"""The popularity of routing keys, word by word."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from broker.pipeline.synth.anonymiser import Anonymiser
from broker.pipeline.synth.key_pool import frequent_keys, pool_of
from broker.pipeline.synth.key_tree import HEAD_MAX, KeyNode, build_tree
from broker.routing.pattern import split_words
from tests.property.topic_reference import matches

KEYS = [("a.b", 60), ("a.c", 20), ("a", 10), ("", 5), ("z..y", 5)]


def test_a_small_tree_gives_back_its_keys_with_their_shares() -> None:
    """The most frequent first: the empty key, a key that others go on from and empty words are keys as well."""
    tree = build_tree(KEYS)
    found = list(frequent_keys(tree, 0.001))
    assert [(key, round(100 * share)) for key, share in found] == KEYS
    assert dict(pool_of(tree, 1000, seed=1)) == pytest.approx(dict(found))
    assert [key for key, _ in frequent_keys(tree, 0.2)] == ["a.b", "a.c"]
    assert tree.messages == 100


def test_what_is_rare_becomes_a_tail_with_as_many_words_and_messages() -> None:
    """A tail goes on where the head ends, by the Zipf law of its counts, and has what stood below its words."""
    words = 200
    counts = [(f"w{rank}.{end}", round(1e6 / rank**1.5)) for rank in range(1, words + 1) for end in ("x", "y")]
    tree = build_tree(counts)
    assert len(tree.head) == HEAD_MAX
    tail = tree.tail
    assert tail is not None
    assert (tail.words, tail.first) == (words - HEAD_MAX, HEAD_MAX + 1)
    assert tail.messages == sum(count for _, count in counts[2 * HEAD_MAX :])
    assert tail.exponent == pytest.approx(1.5, abs=0.01)
    assert set(tail.below.head) == {"x", "y"}
    found = dict(frequent_keys(tree, 1e-9))
    assert len(found) == 2 * words
    assert list(found.values()) == sorted(found.values(), reverse=True)
    total = sum(count for _, count in counts)
    for rank in range(HEAD_MAX + 1, words + 1, 10):
        assert found[f"~{rank - HEAD_MAX}.y"] == pytest.approx(counts[2 * rank - 1][1] / total, rel=0.05)


def test_a_wide_tree_stays_small_and_its_keys_are_drawn() -> None:
    """Of billions of keys, none of them frequent, as many are drawn as there is room for, the same for a seed."""
    draw = random.Random(3)
    tree = build_tree(Counter(".".join(f"{draw.randrange(300)}" for _ in range(4)) for _ in range(12_000)).items())
    assert tree.nodes < 12_000
    assert list(frequent_keys(tree, 1e-4)) == []
    pool = pool_of(tree, 2000, seed=1)
    assert 1990 <= len(pool) <= 2000
    assert sum(share for _, share in pool) == pytest.approx(1.0)
    assert all(len(key.split(".")) == 4 for key, _ in pool)
    assert pool == pool_of(tree, 2000, seed=1) != pool_of(tree, 2000, seed=2)


def test_drawn_keys_come_as_often_as_their_shares_say() -> None:
    """What is too rare to be listed is drawn by the counts of heads, ends and tails alike."""
    tree = build_tree([("a", 500), *((f"b.{n}", 1) for n in range(300)), ("b", 200)])
    pool = dict(pool_of(tree, 500, seed=5))
    assert pool["a"] == pytest.approx(0.5)
    assert pool["b"] == pytest.approx(0.2)
    rare = {key: share for key, share in pool.items() if key.startswith("b.")}
    assert sum(rare.values()) == pytest.approx(0.3)
    assert 80 < len(rare) <= 300
    assert "b." not in rare


def test_a_tree_survives_its_file() -> None:
    """JSON says all of it."""
    tree = build_tree([(f"{n % 90}.{n % 7}", n + 1) for n in range(900)])
    assert tree.tail is not None
    assert KeyNode.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_tokens_leave_patterns_matching_alike() -> None:
    """Every pattern matches a key exactly if its tokens match those of the key; wildcards and empty words stay."""
    draw = random.Random(1)
    made = Anonymiser(b"salt")
    words = ["a", "b", "stock", "", "ü"]
    met = 0
    for _ in range(500):
        key = ".".join(draw.choices(words, k=draw.randint(1, 4)))
        pattern = ".".join(draw.choices([*words, "*", "#"], k=draw.randint(1, 4)))
        expected = matches(split_words(pattern), split_words(key))
        assert matches(split_words(made.key(pattern)), split_words(made.key(key))) == expected
        met += expected
    assert met > 50
    assert made.key("a.*.#.") == f"{made.word('a')}.*.#."
    assert made.word("a") != Anonymiser(b"other").word("a")
    assert "stock" not in made.word("stock")
    assert made.name("amq.topic") == "amq.topic"


@pytest.mark.parametrize("number", [0, 7, 10, 99999, -12345, 10**17])
def test_a_number_becomes_another_with_as_many_digits(number: int) -> None:
    """And the same for the same."""
    other = Anonymiser(b"salt").number(number)
    assert len(str(other)) == len(str(number)) or (number < 0 and other == 0)
    assert other == Anonymiser(b"salt").number(number)


def test_a_renamed_tree_has_the_same_shares() -> None:
    """Only the words are others."""
    made = Anonymiser(b"salt")
    tree = build_tree(KEYS)
    renamed = dict(frequent_keys(tree.renamed(made.word), 0.001))
    assert renamed == {made.key(key): share for key, share in frequent_keys(tree, 0.001)}
