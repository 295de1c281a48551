"""Bindings as conjunctions."""

from __future__ import annotations

import pytest

from broker.overlay.aggregation import EVERYTHING, conjunction, pattern_of
from broker.overlay.packets import Conjunction, Space

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
