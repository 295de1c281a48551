"""A binding, and the hashed form of an argument table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Binding:
    """A link from an exchange to a destination; destination, key and arguments identify it.

    Source: RabbitMQ: bindings that differ only in their arguments are two bindings, for every exchange type.
    """

    exchange: str
    destination: Any
    key: str
    arguments: Mapping[str, Any] = field(compare=False)
    frozen_arguments: Hashable = field(repr=False)


def make_binding(exchange: str, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> Binding:
    """Return a binding that equals any other of the same destination, key and arguments."""
    return Binding(exchange, destination, key, arguments, freeze_value(arguments) if arguments else None)


def binding_identity(key: str, arguments: Mapping[str, Any]) -> Hashable:
    """Return the key and arguments that distinguish a binding from others between the same exchange and destination."""
    return (key, freeze_value(arguments)) if arguments else key


def freeze_value(value: Any) -> Hashable:
    """Return a hashable form of a field value: equal exactly if the AMQP type class and the value are.

    Integers of all widths are one class, as in RabbitMQ; true is not 1, and 1.0 is neither. The order of a table's
    fields does not matter. Cost: the size of the value; its depth was bounded when it was decoded.
    """
    if value is None or isinstance(value, str | bool | int):
        return (type(value).__name__, value)
    if isinstance(value, Mapping):
        fields = [(key, freeze_value(item)) for key, item in value.items()]  # depth: checked when it was decoded
        return ("table", tuple(sorted(fields, key=_field_name)))
    if isinstance(value, list | tuple):
        return ("array", tuple([freeze_value(item) for item in value]))  # depth: as above
    if isinstance(value, bytes | bytearray):
        return ("bytes", bytes(value))
    if isinstance(value, float):
        return ("float", value.hex())  # a NaN must equal itself, or its binding could never be removed
    if isinstance(value, Decimal):
        return ("decimal", str(value))  # the scale is part of the value on the wire
    return (type(value).__name__, value)


def _field_name(item: tuple[str, Hashable]) -> str:
    return item[0]
