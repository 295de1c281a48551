"""The interest in the patterns of a space, and what each neighbour is told of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.aggregation import Aggregation, SpaceTable
from tests.unit.overlay.test_aggregation import PATTERNS, closure

NODES = ("n1", "n2", "n3")
STEPS = st.lists(st.tuples(st.sampled_from((*NODES, "own")), st.sampled_from(("x", "y")), PATTERNS, st.booleans()))


@given(STEPS)
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
