"""The headers exchange: what the conversations recorded from RabbitMQ (tests/differential) do not ask."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.routing.exchange_types import make_exchange
from broker.routing.headers_exchange import BindingArgumentError

MATCHES: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("any is not met by another value", {"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
    ("void under any", {"x-match": "any", "a": None, "b": 1}, {"a": False}, True),
    ("only x- fields is not a field", {"x-a": 1}, {}, True),
    ("x-match is never a field", {"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
    ("a name may begin with x", {"xa": 1}, {}, False),
    ("a timestamp is its seconds", {"a": 1577836800}, {"a": datetime(2020, 1, 1, tzinfo=UTC)}, True),
    ("within an array types count", {"a": [1]}, {"a": [1.0]}, False),
    ("within a table types count", {"a": {"b": 1}}, {"a": {"b": 1.0}}, False),
    ("nothing in an array is nothing in a table", {"a": []}, {"a": {}}, True),
    ("an empty array is not empty text", {"a": []}, {"a": ""}, False),
    ("1 is not a decimal", {"a": 1}, {"a": Decimal(1)}, False),
    ("text is the binary of its octets", {"a": "é"}, {"a": bytearray("é".encode())}, True),
    ("octets that are not text", {"a": b"\xff"}, {"a": bytearray(b"\xff")}, True),
    ("other octets", {"a": b"\xff"}, {"a": b"\xfe"}, False),
    ("only x- fields under all-with-x", {"x-match": "all-with-x"}, {}, True),
    ("void counts an x- field", {"x-match": "all-with-x", "x-a": None}, {"x-a": 1}, True),
    ("X- is not x-", {"X-a": 1}, {}, False),
    ("tables by value", {"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, True),
    ("names by case", {"a": 1}, {"A": 1}, False),
]


@pytest.mark.parametrize(("arguments", "headers", "matched"), [row[1:] for row in MATCHES], ids=[r[0] for r in MATCHES])
def test_matching(arguments: dict[str, Any], headers: dict[str, Any], matched: bool) -> None:
    """Each rule holds; the recorded conversations have those of presence, equality and `x-` fields."""
    exchange = make_exchange("h", "headers")
    exchange.bind("q", "any key", arguments)
    assert exchange.match_headers(headers) == (("q",) if matched else ())


@pytest.mark.parametrize(
    ("kind", "text"), [("some", 'Invalid x-match field value <<"some">>'), (1, "Invalid x-match field type")]
)
def test_bad_match_kind_is_refused(kind: Any, text: str) -> None:
    """An unknown x-match is refused without a binding."""
    exchange = make_exchange("h", "headers")
    with pytest.raises(BindingArgumentError, match=text):
        exchange.bind("q", "", {"x-match": kind})
    assert not exchange.binding_count
    assert exchange.match_headers({}) == ()


def test_one_copy_per_destination() -> None:
    """Two matching bindings to one destination give one copy, until the last of them is removed."""
    exchange = make_exchange("h", "headers")
    exchange.bind("q", "", {"a": 1})
    exchange.bind("q", "", {"b": 1})
    exchange.bind("r", "", {})
    assert exchange.match_headers({"a": 1, "b": 1}) == ("q", "r")
    exchange.unbind("q", "", {"a": 1})
    assert exchange.match_headers({"a": 1, "b": 1}) == ("q", "r")
    assert exchange.unbind("q", "", {"b": 1}) is not None
    assert exchange.match_headers({"a": 1, "b": 1}) == ("r",)


def test_route_stands_for_the_exchange() -> None:
    """The route has no destinations, survives changes of bindings, and ends with the exchange."""
    exchange = make_exchange("h", "headers")
    route = exchange.route("k")
    exchange.bind("q", "", {})
    assert exchange.by_headers
    assert exchange.route("other") is route
    assert route.live
    assert route.destinations == ()
    (bundle,) = exchange.end()
    assert not route.live
    assert exchange.remove_keys(bundle, 9) == 1
    assert exchange.match_headers({}) == ()
