"""What bindings ask for, the patterns that are announced for it, and what each neighbour is told."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.overlay.aggregation import EVERYTHING, Aggregation, Announced, SpaceTable, conjunction, pattern_of
from broker.overlay.packets import Conjunction, Space
from broker.routing.cover_index import covers
from broker.routing.pattern import parse_pattern

PATTERNS = st.sampled_from(["#", "a.#", "a.*", "a.b", "*.b", "a.b.c", "b", "b.#", "*", ""])


def closure(patterns: set[str]) -> set[str]:
    """Return the patterns that no other one covers."""
    return {
        text
        for text in patterns
        if not any(other != text and covers(parse_pattern(other), parse_pattern(text)) for other in patterns)
    }


@pytest.mark.parametrize("aggregation", Aggregation)
@given(steps=st.lists(PATTERNS, max_size=40), limit=st.integers(0, 6))
def test_the_changes_add_up_to_what_is_announced(aggregation: Aggregation, steps: list[str], limit: int) -> None:
    """Each pattern is added on its first turn and removed on the next; no change is told that is none."""
    announced = Announced(aggregation, limit)
    held: set[str] = set()
    told: set[str] = set()
    full_feed = False
    for text in steps:
        change = announced.remove(parse_pattern(text)) if text in held else announced.add(parse_pattern(text))
        held ^= {text}
        assert all((name in told) != came for name, came in change.items())
        told ^= change.keys()
        roots = closure(held) if aggregation is Aggregation.COVERING else held
        full_feed = len(roots) > (limit // 2 if full_feed else limit)
        assert told == set(announced.patterns) == ({"#"} if full_feed else roots)


@pytest.mark.parametrize("aggregation", Aggregation)
def test_equal_patterns_count_until_the_last_goes(aggregation: Aggregation) -> None:
    """Only the first and the last change what is announced."""
    announced, pattern = Announced(aggregation, 10), parse_pattern("a.b")
    changes = [announced.add(pattern), announced.add(pattern), announced.remove(pattern), announced.remove(pattern)]
    assert changes == [{"a.b": True}, {}, {}, {"a.b": False}]
    with pytest.raises(KeyError):
        announced.remove(pattern)


NODES = ("n1", "n2", "n3")
STEPS = st.lists(st.tuples(st.sampled_from((*NODES, "own")), st.sampled_from(("x", "y")), PATTERNS, st.booleans()))


@given(STEPS)
@example([("n1", broker, "b", comes) for broker, comes in (("x", True), ("y", True), ("y", False), ("y", False))])
def test_each_neighbour_is_told_the_closure_of_what_the_others_want(steps: list[tuple[str, str, str, bool]]) -> None:
    """Whatever is held and released, and however often; changes are told exactly."""
    table = SpaceTable("own", NODES, Aggregation.COVERING, 100)
    held: set[tuple[str, str, str]] = set()
    told: dict[str, set[str]] = {node: set() for node in NODES}
    for node, broker, text, comes in steps:
        wanted = {text for holder, _, text in held if holder == node}
        change = (table.hold if comes else table.release)(node, broker, text)
        (held.add if comes else held.discard)((node, broker, text))
        now_wanted = {text for holder, _, text in held if holder == node}
        assert (change is not None) == (wanted != now_wanted)
        assert set(table.patterns(node)) == now_wanted
        for neighbour, texts in (change or {}).items():
            assert all((name in told[neighbour]) != came for name, came in texts.items())
            told[neighbour] ^= texts.keys()
    for neighbour in NODES:
        others = {text for holder, _, text in held if holder != neighbour}
        assert told[neighbour] == set(table.announced(neighbour)) == closure(others)
    assert bool(table) == bool(held)
    assert set(table.wanting("a.b")) == {
        holder for holder, _, text in held if holder != "own" and text in ("#", "a.#", "a.*", "a.b", "*.b")
    }


def test_equal_patterns_in_other_words_count_each() -> None:
    """A text that is not canonical is held beside the canonical one."""
    table = SpaceTable("own", NODES, Aggregation.COVERING, 100)
    table.hold("n1", "x", "#.#")
    table.hold("n1", "x", "#")
    table.release("n1", "x", "#.#")
    assert table.wanting("a") == ("n1",)
    assert list(table.announced("n2")) == ["#"]
    table.release("n1", "x", "#")
    assert not table.wanting("a")
    assert not list(table.announced("n2"))


SPACE = Space("/", "orders")


@pytest.mark.parametrize(
    ("kind", "key", "pattern"),
    [
        ("topic", "a.b", "a.b"),
        ("topic", "a.#.*", "a.*.#"),
        ("topic", "#.#", "#"),
        ("topic", "", ""),
        ("topic", "#.a.#.b.#", "#"),  # exceeds the limits of a pattern
        ("direct", "a.b", "a.b"),
        ("direct", "", ""),
        ("direct", "a*.b#", "a*.b#"),  # no word is a wildcard
        ("direct", "a.*", "#"),
        ("direct", "#.b", "#"),
        ("fanout", "a", "#"),
        ("headers", "", "#"),
        ("x-consistent-hash", "10", "#"),
        ("of tomorrow", "a", "#"),
    ],
)
def test_a_binding_asks_for_no_less_than_its_exchange_routes_to_it(kind: str, key: str, pattern: str) -> None:
    """Topic keys are canonical, direct keys match only themselves, and every other filter is everything."""
    assert conjunction(SPACE, kind, key) == Conjunction(SPACE, pattern)


def test_a_text_that_is_no_pattern_asks_for_everything() -> None:
    """A peer with wider limits loses nothing."""
    assert pattern_of("#.a.#.b.#") == EVERYTHING
    assert pattern_of(".".join(["a"] * 65)) == EVERYTHING
    assert pattern_of("a.*").words == ("a", "*")
