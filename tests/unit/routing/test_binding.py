"""Equality of bindings."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.routing.bundle import make_binding

SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"a": 1, "b": "x"}, {"b": "x", "a": 1}),
    ({"t": {"p": [1, {"q": None}], "r": 2}}, {"t": {"r": 2, "p": [1, {"q": None}]}}),
    ({"n": float("nan")}, {"n": float("nan")}),
    ({"d": Decimal("1.50")}, {"d": Decimal("1.50")}),
    ({"s": datetime(2020, 1, 1, tzinfo=UTC)}, {"s": datetime(2020, 1, 1, tzinfo=UTC)}),
    ({"raw": b"\x00\xff"}, {"raw": bytearray(b"\x00\xff")}),
]
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"a": None}),
    ({"a": 1}, {"a": True}),
    ({"a": 0}, {"a": False}),
    ({"a": 1}, {"a": 1.0}),
    ({"a": 1}, {"a": Decimal(1)}),
    ({"a": "1"}, {"a": b"1"}),
    ({"d": Decimal("1.50")}, {"d": Decimal("1.5")}),
    ({"a": [1, 2]}, {"a": [2, 1]}),
    ({"a": [1]}, {"a": 1}),
    ({"a": {}}, {"a": []}),
    ({"a": {"b": 1}}, {"a": {"b": True}}),
    ({"a": 1}, {"b": 1}),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_equal_arguments_make_one_binding(left: dict[str, Any], right: dict[str, Any]) -> None:
    """The order of fields does not matter, and a value that is unequal to itself (NaN) is the same argument."""
    first, second = make_binding("x", "q", "k", left), make_binding("x", "q", "k", right)
    assert first == second
    assert hash(first) == hash(second)
    assert first.arguments is left


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_other_arguments_make_another_binding(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Values of different type classes are different arguments."""
    assert make_binding("x", "q", "k", left) != make_binding("x", "q", "k", right)
    assert make_binding("x", "q", "k", right) != make_binding("x", "q", "k", left)


def test_destination_and_key_identify_a_binding() -> None:
    """A binding is identified by exchange, destination and key."""
    bindings = {make_binding(x, q, k, {}) for x in ("x", "y") for q in ("q", "r") for k in ("", "k")}
    assert len(bindings) == 8
