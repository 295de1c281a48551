"""The lazily built DFA: its states and its limits."""

import random

import pytest

from broker.routing.engines.dfa import DfaLimits, LazyDfa
from broker.routing.pattern import AMQP, parse_pattern
from tests.property.topic_reference import matches

BLOG_PATTERNS = ["a.b.c", "a.*.b.c", "a.#.c", "b.b.c"]


def fill(patterns: list[str], limits: DfaLimits | None = None) -> LazyDfa[str]:
    """Return a DFA of canonical patterns, each with itself as the target."""
    dfa: LazyDfa[str] = LazyDfa(AMQP, limits)
    for pattern in patterns:
        dfa.add(parse_pattern(pattern), pattern)
    return dfa


def test_states_are_built_when_a_key_reaches_them() -> None:
    """No state exists before the first match; then one per word and the start; a repeated key adds none."""
    dfa = fill(BLOG_PATTERNS)
    assert dfa.counts() == {"places": 11, "states": 0, "transitions": 0, "dropped": 0}
    assert set(dfa.match("a.b.c")) == {"a.b.c", "a.#.c"}
    assert dfa.counts() == {"places": 11, "states": 4, "transitions": 3, "dropped": 0}
    dfa.visited = 0
    assert set(dfa.match("a.b.c")) == {"a.b.c", "a.#.c"}
    assert dfa.visited == 3  # one lookup per word
    assert dfa.counts() == {"places": 11, "states": 4, "transitions": 3, "dropped": 0}


def test_a_loop_is_one_state() -> None:
    """The blog's key a.d.d.d.c: after `a.#` each d returns to one state, so longer keys need no more states."""
    dfa = fill(BLOG_PATTERNS)
    assert dfa.match("a.d.d.d.c") == ["a.#.c"]
    built = dfa.counts()
    assert dfa.match("a." + "d." * 100 + "c") == ["a.#.c"]
    assert dfa.counts() == built


def test_unknown_words_leave_nothing() -> None:
    """10,000 unknown words share the states of the first."""
    dfa = fill([*BLOG_PATTERNS, "*.*.x.#"])
    for word in ("u", "v"):
        dfa.match(f"{word}.{word}.{word}")
        dfa.match(f"a.{word}.{word}")
    built = dfa.counts()
    for number in range(10_000):
        dfa.match(f"{number}.{number}.{number}")
        dfa.match(f"a.{number}.{number}")
    assert dfa.counts() == built


def test_words_of_other_places_leave_nothing_either() -> None:
    """A word of other patterns that none has at this state counts as unknown there."""
    dfa = fill([f"a.*.{number}" for number in range(1000)])
    dfa.match("0.x")
    built = dfa.counts()
    for number in range(1000):
        assert dfa.match(f"{number}.x") == []
    assert dfa.counts() == built


def test_without_matches_nothing_is_built_or_dropped() -> None:
    """Many binds without matches build no states, and a refused pattern drops none."""
    dfa = fill([f"{number}.*" for number in range(1000)])
    assert (dfa.drops, dfa.visited) == (0, 0)
    dfa.match("1.x")
    with pytest.raises(KeyError):
        dfa.remove(parse_pattern("unknown.*"))
    assert dfa.drops == 0
    for number in range(1000):
        dfa.remove(parse_pattern(f"{number}.*"))
    assert dfa.drops == 1


def test_dropped_states_go_a_few_at_a_time() -> None:
    """Each operation frees a few dropped states, and the last removal frees the rest."""
    dfa = fill(["#.a" + ".*" * stars for stars in range(12)])
    for number in range(2**11):
        dfa.match(".".join(f"{number:011b}".replace("0", "b").replace("1", "a")))
    built = dfa.counts()["states"]
    assert built > 2000
    dfa.add(parse_pattern("x.*"), "x.*")
    left = dfa.counts()["dropped"]
    assert built - 20 <= left < built
    while left:
        dfa.match("a.b.a.b")
        assert left - 30 <= dfa.counts()["dropped"] < left
        assert dfa.counts()["dropped"] + dfa.counts()["states"] <= built
        left = dfa.counts()["dropped"]
    for stars in range(12):
        dfa.match("a.b.a.b.a.b")
        dfa.remove(parse_pattern("#.a" + ".*" * stars))
    dfa.match("x.y")
    dfa.remove(parse_pattern("x.*"))
    assert not any(dfa.counts().values())


@pytest.mark.parametrize("limits", [DfaLimits(states=3), DfaLimits(transitions=3), DfaLimits(places=6)])
def test_bounds_hold_and_answers_stay_right(limits: DfaLimits) -> None:
    """Above the limits of states, transitions or places all states are dropped, even within a key."""
    source = random.Random(5)
    patterns = ["a.#.b", "*.a.*", "#.a.#.b", "b.#", "*"]
    dfa = fill(patterns, limits)
    for _ in range(500):
        words = source.choices(["a", "b", "c"], k=source.randrange(6))
        expected = [pattern for pattern in patterns if matches(pattern.split("."), words)]
        assert sorted(dfa.match(".".join(words))) == sorted(expected)
        assert dfa.counts()["states"] <= limits.states
        assert dfa.counts()["transitions"] <= limits.transitions
    assert dfa.drops > 10


def test_a_hostile_family_is_bounded() -> None:
    """`#.a` followed by more and more stars needs a state per set of recent words: 2^16 without the limit."""
    patterns = ["#.a" + ".*" * stars for stars in range(16)]
    dfa = fill(patterns, DfaLimits(states=1000))
    source = random.Random(3)
    for _ in range(300):
        words = source.choices(["a", "b"], k=60)
        dfa.visited = 0
        expected = {pattern for stars, pattern in enumerate(patterns) if words[-1 - stars] == "a"}
        assert set(dfa.match(".".join(words))) == expected
        assert dfa.visited <= 60 * 3 * dfa.counts()["places"]
        assert dfa.counts()["states"] <= 1000
    assert dfa.drops > 0
