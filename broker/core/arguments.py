"""Argument tables of declares and binds: what is checked in them, and how they are kept as JSON.

An argument that a client relies on and that is not built yet is refused, never ignored: a queue without its length
limit fills the disk. Texts: RabbitMQ 3.10.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.resource import Resource

# Known to RabbitMQ 3.10 and not built yet.
QUEUE_NOT_YET = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-priority",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
)
CONSUMER_NOT_YET = ("x-priority", "x-stream-offset")
EXCHANGE_NOT_YET = ("alternate-exchange",)
QUEUE_TYPES = ("classic", "quorum")
QUEUE_MODES = ("default", "lazy")
QUEUE_VERSIONS = (1, 2)
CLASSIC_ONLY = ("x-queue-mode", "x-queue-version", "x-queue-master-locator")
X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")

INT_32 = range(-(2**31), 2**31)


def refuse_not_yet(resource: Resource, arguments: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuses the first argument that asks for something that is not built yet.

    Raises: 540, which closes the connection.
    """
    for name in names:
        if name in arguments:
            raise ConnectionFault(540, f"argument '{name}' for {resource} is not supported")


def queue_type(arguments: Mapping[str, Any]) -> str:
    """Returns the type a queue was asked to be; every type is served by the same durable queue here."""
    return str(arguments.get("x-queue-type", "classic"))


def check_queue_arguments(
    resource: Resource, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Checks the arguments of a queue that is about to be created.

    Raises: 406 for a bad value or a property that a quorum queue cannot have; 540 for a stream.
    """
    _check_choice(resource, arguments, "x-queue-type", "queue type", (*QUEUE_TYPES, "stream"))
    if arguments.get("x-queue-type") == "stream":
        raise ConnectionFault(540, f"argument 'x-queue-type' with value 'stream' for {resource} is not supported")
    if arguments.get("x-queue-type") != "quorum":
        _check_choice(resource, arguments, "x-queue-mode", "queue mode", QUEUE_MODES)
        _check_version(resource, arguments)
        return
    for name in CLASSIC_ONLY:
        if name in arguments:
            raise ChannelError(406, f"invalid arg '{name}' for {resource} of queue type rabbit_quorum_queue")
    for wrong, name in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise ChannelError(406, f"invalid property '{name}' for {resource}")


def _check_choice(
    resource: Resource, arguments: Mapping[str, Any], name: str, noun: str, choices: tuple[str, ...]
) -> None:
    if name not in arguments:
        return
    value = arguments[name]
    if amqp_type(value) != "longstr":
        raise ChannelError(406, f"invalid arg '{name}' for {resource}: {{unacceptable_type,{amqp_type(value)}}}")
    if value not in choices:
        raise ChannelError(406, f"invalid arg '{name}' for {resource}: \"unsupported {noun} '{text(value)}'\"")


def _check_version(resource: Resource, arguments: Mapping[str, Any]) -> None:
    if "x-queue-version" not in arguments:
        return
    value = arguments["x-queue-version"]
    if type_class(value) != "int":
        reason = f'"expected integer, got {amqp_type(value)}"'
    elif value not in QUEUE_VERSIONS:
        reason = f"\"unsupported queue version '{value}'\""
    else:
        return
    raise ChannelError(406, f"invalid arg 'x-queue-version' for {resource}: {reason}")


def check_headers_match(arguments: Mapping[str, Any]) -> None:
    """Checks x-match of a binding to a headers exchange.

    Raises: 406.
    """
    if "x-match" not in arguments:
        return
    value = arguments["x-match"]
    if amqp_type(value) != "longstr":
        raise ChannelError(
            406, f"Invalid x-match field type {amqp_type(value)} (value {text(value)}); expected longstr"
        )
    if value not in X_MATCH_VALUES:
        raise ChannelError(
            406, f'Invalid x-match field value <<"{text(value)}">>; expected all, any, all-with-x, or any-with-x'
        )


def text(value: object) -> str:
    """Returns a value as RabbitMQ prints it inside a reply text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    return str(value)


def amqp_type(value: object) -> str:
    """Returns the name RabbitMQ gives the type of a decoded field.

    Invariant: the codec keeps no integer widths, so an integer is signedint when it fits 32 bits and long otherwise.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return "signedint" if value in INT_32 else "long"
    for types, name in _TYPE_NAMES:
        if isinstance(value, types):
            return name
    return "void"


def type_class(value: object) -> str:
    """Returns the class within which two values may be equal: integers of all widths are one, booleans another."""
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
    """Returns a decoded field as JSON from which `from_json` makes the same value of the same type.

    Shapes: strings, booleans, integers, null and arrays are themselves; any other type is an object with one key, the
        type's name.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {"table": {key: to_json(item) for key, item in value.items()}}
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
    """Returns the field that `to_json` was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
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
