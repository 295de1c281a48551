"""The patterns that are announced in place of a set of patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.aggregation import Aggregation, Announced
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
