"""Argument values: their types in RabbitMQ's texts, what a repeated declare compares, and JSON that keeps types."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.core.arguments import amqp_type, read_typed, type_class, typed_table
from broker.core.vhost import Vhost


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "bool"),
        (2**31 - 1, "signedint"),
        (-(2**31), "signedint"),
        (2**31, "long"),
        ("text", "longstr"),
        (b"\xff", "longstr"),
        (bytearray(b"\xff"), "binary"),
        (1.5, "double"),
        (Decimal("1.5"), "decimal"),
        (datetime(2026, 1, 1, tzinfo=UTC), "timestamp"),
        ({}, "table"),
        ([], "array"),
        (None, "void"),
    ],
)
def test_a_value_has_the_type_name_of_rabbitmqs_texts(value: object, name: str) -> None:
    """The type names are those of rabbit_binary_parser."""
    assert amqp_type(value) == name


def test_true_is_no_integer_and_integers_of_all_widths_are_one_class() -> None:
    """A repeated declare with true instead of 1 differs; integers of all widths are equal."""
    assert type_class(1) == type_class(2**40) != type_class(True)


def test_arguments_without_consequence_may_differ(vhost: Vhost) -> None:
    """A repeated declare compares only arguments that change a queue."""
    queue = vhost.queues.declare("q", arguments={"owner": "alice"})
    assert vhost.queues.declare("q", arguments={"owner": "bob"}) is queue
    assert queue.arguments == {"owner": "alice"}


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
