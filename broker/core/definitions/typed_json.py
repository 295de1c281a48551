"""Arguments in a definitions document: a value without a JSON type is an object with one key, `$` and AMQP's type
octet.

    {"$D": "1.50"}          decimal
    {"$T": 1700000000}       timestamp in seconds; as a text where it is beyond 64 bits with a sign
    {"$x": "AAEC"}           byte array, in Base64
    {"$S": "//4A"}           long string that is not UTF-8, in Base64
    {"$d": "inf"}            double that is not a number or has no end
    {"$F": {...}}            table with one such key itself

So an export and an import keep each value and its type. RabbitMQ loses them in its own export, and reads these as
tables.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from broker.amqp.errors import ProtocolError
from broker.amqp.table_writer import encode_table
from broker.amqp.wire import INT_64_MAX


def typed_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument table as JSON from which `read_typed` makes the same one."""
    return {name: _typed(value) for name, value in arguments.items()}


def read_typed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument table of a document. An object that only looks like a typed value is a table.

    Invariant: the table is no deeper than the document's, which was checked.
    """
    return {name: _read(value) for name, value in arguments.items()}


def _typed(value: Any) -> Any:
    if isinstance(value, Mapping):
        table = typed_table(value)
        return {"$F": table} if _octet_of(table) else table
    if isinstance(value, (list, tuple)):
        return [_typed(item) for item in value]  # depth: checked when it was decoded
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
    if isinstance(value, int) and value > INT_64_MAX:  # only a timestamp beyond the calendar is read as such
        return {"$T": str(value)}
    return value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    if octet := _octet_of(value):
        try:
            return _READERS[octet](value[octet])
        except (TypeError, ValueError, AttributeError, InvalidOperation, OverflowError, ProtocolError):
            pass
    return read_typed(value)


def _octet_of(table: Mapping[str, Any]) -> str:
    """Return the only key of a table if it is that of a typed value, else an empty text."""
    if len(table) != 1:
        return ""
    (key,) = table
    return key if key in _READERS else ""


def _decimal(text: Any) -> Decimal:
    value = Decimal(text)
    encode_table({"": value})  # raises for what AMQP has no room for
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
