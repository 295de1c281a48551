"""The lazily built DFA: its states, its bounds, and what is left behind."""

import random

import pytest

from broker.routing.dialect import AMQP
from broker.routing.engines.dfa import DfaLimits, LazyDfa
from broker.routing.pattern import canonical_words, parse_pattern
from tests.property.topic_reference import matches

BLOG_PATTERNS = ["a.b.c", "a.*.b.c", "a.#.c", "b.b.c"]


def fill(patterns: list[str], limits: DfaLimits | None = None) -> LazyDfa[str]:
    """Return a DFA of canonical patterns, each its own target."""
    dfa: LazyDfa[str] = LazyDfa(AMQP, limits)
    for pattern in patterns:
        dfa.add(parse_pattern(pattern), pattern)
    return dfa


def test_states_are_built_when_a_key_reaches_them() -> None:
    """None before the first match; then the start and one for each word; none for the same key again."""
    dfa = fill(BLOG_PATTERNS)
    assert dfa.counts() == {"places": 11, "states": 0, "transitions": 0, "dropped": 0}
    assert set(dfa.match("a.b.c")) == {"a.b.c", "a.#.c"}
    assert dfa.counts() == {"places": 11, "states": 4, "transitions": 3, "dropped": 0}
    dfa.visited = 0
    assert set(dfa.match("a.b.c")) == {"a.b.c", "a.#.c"}
    assert dfa.visited == 3  # one look-up a word
    assert dfa.counts() == {"places": 11, "states": 4, "transitions": 3, "dropped": 0}


def test_a_loop_is_one_state() -> None:
    """The blog's key a.d.d.d.c: behind `a.#` every further d leads back, so longer keys need no more states."""
    dfa = fill(BLOG_PATTERNS)
    assert dfa.match("a.d.d.d.c") == ["a.#.c"]
    built = dfa.counts()
    assert dfa.match("a." + "d." * 100 + "c") == ["a.#.c"]
    assert dfa.counts() == built


def test_unknown_words_leave_nothing() -> None:
    """10,000 words that no pattern has lead to the same states as the first of them."""
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
    """A word that patterns have, but none of them at this state, is unknown to the state."""
    dfa = fill([f"a.*.{number}" for number in range(1000)])
    dfa.match("0.x")
    built = dfa.counts()
    for number in range(1000):
        assert dfa.match(f"{number}.x") == []
    assert dfa.counts() == built


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_changed_pattern_drops_the_states(change: str) -> None:
    """And the answer is that of the patterns as they are now."""
    dfa = fill(["a.*", "a.#.c"])
    assert set(dfa.match("a.c")) == {"a.*", "a.#.c"}
    assert dfa.drops == 0
    if change == "add":
        dfa.add(parse_pattern("*.c"), "*.c")
    else:
        dfa.remove(parse_pattern("a.*"))
    assert dfa.drops == 1
    assert dfa.counts()["states"] == 0
    assert set(dfa.match("a.c")) == ({"a.*", "a.#.c", "*.c"} if change == "add" else {"a.#.c"})


def test_without_matches_nothing_is_built_or_dropped() -> None:
    """A storm of bindings costs their words; a pattern that is refused drops nothing."""
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
    """No verb gives back thousands at once, none keeps them for ever, and the last removal leaves none."""
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
    """States, transitions and the places that states hold: over the bound all go, even in the middle of a key."""
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
    """`#.a` with more and more stars behind it needs a state for each set of recent words: 2^16 without the bound."""
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


def test_words_between_many_hashes_cost_places_times_words() -> None:
    """Fifteen `#` against 31 equal words: a state holds each place once, however many ways lead to it."""
    pattern = ["#", "a"] * 15 + ["#"]
    dfa = fill([".".join(pattern)])
    dfa.visited = 0
    assert len(dfa.match(".".join(["a"] * 31))) == 1
    assert dfa.visited <= 32 * 3 * len(pattern)


def test_nothing_is_left_after_the_removals() -> None:
    """Whatever was matched between, in an order unlike that of the adds."""
    source = random.Random(9)
    patterns = sorted({".".join(canonical_words(source.choices(["a", "b", "*", "#"], k=4))) for _ in range(50)})
    dfa = fill(patterns)
    source.shuffle(patterns)
    for pattern in patterns:
        dfa.match("a.b.a.b")
        assert dfa.remove(parse_pattern(pattern)) == pattern
    assert len(dfa) == 0
    assert dfa.match("a.b") == []
    assert not any(dfa.counts().values())


def test_the_answer_belongs_to_the_caller() -> None:
    """What a caller adds to the list is not found by the next one."""
    dfa = fill(["a.*"])
    dfa.match("a.b").append("mine")
    assert dfa.match("a.b") == ["a.*"]
