"""Fields of argument tables: RabbitMQ's names of their types, their printed form, and their form in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.amqp.errors import ChannelError
from broker.core.names import Resource

X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")
INT_32 = range(-(2**31), 2**31)


def queue_type(arguments: Mapping[str, Any]) -> str:
    """Return the declared type of a queue; the same implementation serves every type."""
    return str(arguments.get("x-queue-type", "classic"))


def named_exchange(resource: Resource, arguments: Mapping[str, Any], name: str) -> str | None:
    """Return the exchange that an argument of a declare names, None if the argument is absent.

    Raises: 406 when it is not text.
    """
    if name not in arguments:
        return None
    value = arguments[name]
    if amqp_type(value) != "longstr":
        raise ChannelError(406, f"invalid type '{amqp_type(value)}' for arg '{name}' in {resource}")
    return text(value)


def check_headers_match(arguments: Mapping[str, Any]) -> None:
    """Check x-match of a binding to a headers exchange.

    Raises: 406.
    """
    if "x-match" not in arguments:
        return
    value = arguments["x-match"]
    if amqp_type(value) != "longstr":
        printed = "undefined" if value is None else text(value)
        raise ChannelError(406, f"Invalid x-match field type {amqp_type(value)} (value {printed}); expected longstr")
    if value not in X_MATCH_VALUES:
        printed = f'<<"{text(value)}">>' if value else "<<>>"  # Erlang prints an empty binary without quotes
        raise ChannelError(406, f"Invalid x-match field value {printed}; expected all, any, all-with-x, or any-with-x")


def text(value: object) -> str:
    """Return a value as RabbitMQ prints it inside a reply text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    return str(value)


def amqp_type(value: object) -> str:
    """Return the name RabbitMQ gives the type of a decoded field.

    Invariant: the codec keeps no integer widths, so an integer is signedint when it fits 32 bits and long otherwise.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return "signedint" if value in INT_32 else "long"
    for types, name in _TYPE_NAMES:
        if isinstance(value, types):
            return name
    return "void"


def type_class(value: object) -> str:
    """Return the class within which two values may be equal: integers of all widths are one class, booleans another."""
    name = amqp_type(value)
    return "int" if name in ("signedint", "long", "decimal") else name


_TYPE_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    ((str, bytes), "longstr"),
    (bytearray, "binary"),
    (float, "double"),
    (Decimal, "decimal"),
    (datetime, "timestamp"),
    (dict, "table"),
    (list, "array"),
)


def to_json(value: Any) -> Any:
    """Return a decoded field as JSON from which `from_json` makes the same value of the same type.

    Shapes: strings, booleans, integers, null and arrays are themselves; any other type is an object with one key, the
        type's name.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, list):
        return [to_json(item) for item in value]  # depth: checked when it was decoded
    if isinstance(value, dict):
        return {"table": {key: to_json(item) for key, item in value.items()}}  # depth: as above
    if isinstance(value, float):
        return {"double": repr(value)}  # JSON has no word for infinity
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, bytearray):
        return {"binary": value.hex()}
    if isinstance(value, bytes):
        return {"longstr": value.hex()}  # a long string that is not UTF-8
    raise TypeError(f"an AMQP field table holds no {type(value).__name__}")


def from_json(value: Any) -> Any:
    """Return the field that `to_json` encoded."""
    if isinstance(value, list):
        return [from_json(item) for item in value]  # depth: that of `to_json`
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    return _FROM_JSON[name](inner)


_FROM_JSON: dict[str, Any] = {
    "table": lambda inner: {key: from_json(item) for key, item in inner.items()},
    "double": float,
    "decimal": Decimal,
    "timestamp": datetime.fromisoformat,
    "binary": bytearray.fromhex,
    "longstr": bytes.fromhex,
}
