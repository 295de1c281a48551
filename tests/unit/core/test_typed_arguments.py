"""Arguments in a definitions document keep the types that JSON does not have."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.core.arguments import read_typed, typed_table


@pytest.mark.parametrize(
    "value",
    [
        Decimal("1.50"),
        datetime(2026, 11, 29, tzinfo=UTC),
        (1 << 64) - 1,
        bytearray(b"\x00\xff"),
        b"\xff\xfe",
        float("inf"),
        {"$x": "AAEC"},
        {"$F": {"$D": "1"}},
        {"$q": 1},
        {"$x": "AAEC", "other": 1},
        [1, {"a": [Decimal("0.1"), None, True, 1.5, "text", b"\xff"]}],
    ],
    ids=repr,
)
def test_a_value_and_its_type_come_back(value: Any) -> None:
    """Also where a table looks like a typed value."""
    found = read_typed(json.loads(json.dumps(typed_table({"name": value}))))["name"]
    assert (found, type(found)) == (value, type(value))


def test_what_only_looks_like_a_typed_value_is_a_table() -> None:
    """Tables of other brokers may have such keys."""
    texts = ['{"$D": "x"}', '{"$D": "1e99"}', '{"$D": "-1"}', '{"$x": "?"}', '{"$S": 1}', '{"$T": null}', '{"$F": 1}']
    for value in map(json.loads, [*texts, '{"$d": []}', '{"$T": "a"}', '{"$q": 1}']):
        assert read_typed({"name": value}) == {"name": value}
