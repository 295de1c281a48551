"""The values in argument tables: RabbitMQ's names for their types, its text for them, and a lossless form in JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from broker.amqp.errors import ChannelError, ProtocolError
from broker.amqp.table_writer import encode_table
from broker.amqp.wire import INT_64_MAX
from broker.core.names import Resource

X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")
INT_32 = range(-(2**31), 2**31)


def named_exchange(resource: Resource, arguments: Mapping[str, Any], name: str) -> str | None:
    """Return the name of an exchange from an argument of a declare, or None if the argument is absent.

    Raises: 406 if the argument is not text.
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
    """Return RabbitMQ's name for the type of a decoded value.

    Decoded integers do not have a width: they are signedint if they fit into 32 bits, else long.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return "signedint" if value in INT_32 else "long"
    for types, name in _TYPE_NAMES:
        if isinstance(value, types):
            return name
    return "void"


def type_class(value: object) -> str:
    """Return the type of a value for comparisons: `int` for integers and decimals, else as `amqp_type` does."""
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


def typed_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument table as JSON that `read_typed` converts back without loss.

    Shapes: a value without a JSON type is an object with one key, `$` and AMQP's type octet.

        {"$D": "1.50"}           decimal
        {"$T": 1700000000}       timestamp in seconds; a string if it exceeds a signed integer of 64 bits
        {"$x": "AAEC"}           byte array, in Base64
        {"$S": "//4A"}           long string that is not UTF-8, in Base64
        {"$d": "inf"}            double that is infinite or NaN
        {"$F": {...}}            table whose only key is one of these

    RabbitMQ loses these types in its own export, and reads such an object as a table.
    """
    return {name: _typed(value) for name, value in arguments.items()}


def read_typed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument table that `typed_table` wrote as JSON; the caller has checked its depth. An object whose
    value does not have the format of its key is read as a table.
    """
    return {name: _read(value) for name, value in arguments.items()}


def _typed(value: Any) -> Any:
    if isinstance(value, Mapping):
        table = typed_table(value)
        return {"$F": table} if _octet_of(table) else table
    if isinstance(value, (list, tuple)):
        return [_typed(item) for item in value]  # depth: checked when the table was decoded
    if isinstance(value, bytearray):
        return {"$x": b64encode(value).decode()}
    if isinstance(value, bytes):
        return {"$S": b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$T": int(value.timestamp())}
    if isinstance(value, Decimal):
        return {"$D": str(value)}
    if isinstance(value, float) and value - value != 0:
        return {"$d": str(value)}
    if isinstance(value, int) and value > INT_64_MAX:  # a timestamp that a datetime cannot represent
        return {"$T": str(value)}
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise TypeError(f"an AMQP field table holds no {type(value).__name__}")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]  # depth: checked by the caller
    if not isinstance(value, dict):
        return value
    if octet := _octet_of(value):
        try:
            return _READERS[octet](value[octet])
        except (TypeError, ValueError, AttributeError, InvalidOperation, OverflowError, ProtocolError):
            pass
    return read_typed(value)


def _octet_of(table: Mapping[str, Any]) -> str:
    """Return the key of a table that represents a typed value; an empty string for any other table."""
    if len(table) != 1:
        return ""
    (key,) = table
    return key if key in _READERS else ""


def _decimal(text: Any) -> Decimal:
    value = Decimal(text)
    encode_table({"": value})  # raises if AMQP cannot represent it
    return value


def _moment(seconds: Any) -> datetime | int:
    number = int(seconds)
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return number


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$D": _decimal,
    "$T": _moment,
    "$x": lambda text: bytearray(b64decode(text, validate=True)),
    "$S": lambda text: b64decode(text, validate=True),
    "$d": float,
    "$F": lambda table: read_typed(dict(table.items())),
}
