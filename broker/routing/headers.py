"""The arguments of a binding to a headers exchange as a predicate over message headers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any

from broker.routing.bundle import freeze_value


class BindingArgumentError(ValueError):
    """A headers exchange cannot use these binding arguments."""


MATCH_KINDS = {
    "all": (True, False),
    "any": (False, False),
    "all-with-x": (True, True),
    "any-with-x": (False, True),
}
"""x-match -> (every field has to match, fields beginning with `x-` count)."""


class HeadersPredicate:
    """Tells whether message headers satisfy a binding.

    A void value requires presence alone. Without fields to compare, `all` matches every message and `any` none.

    Source: RabbitMQ 4.3, rabbit_exchange_type_headers.
    """

    __slots__ = ("_every", "_wanted")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._every, with_x = _match_kind(arguments)
        self._wanted: tuple[tuple[str, Hashable], ...] = tuple(
            (name, None if value is None else comparable_value(value))
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        )

    def matches(self, headers: Mapping[str, Hashable]) -> bool:
        """Return whether headers (name -> comparable_value) satisfy the binding."""
        every = self._every
        for name, value in self._wanted:
            met = name in headers and (value is None or headers[name] == value)
            if met is not every:
                return met
        return every


def comparable_headers(headers: Mapping[str, Any]) -> dict[str, Hashable]:
    """Return message headers in the form that predicates compare."""
    return {name: comparable_value(value) for name, value in headers.items()}


def comparable_value(value: Any) -> Hashable:
    """Return a hashable form of a field value: equal to another exactly if RabbitMQ calls the two values equal.

    It compares the outermost values without their types: integers of all widths are one, a timestamp is its seconds, a
    long string is the binary of the same octets, and an empty array is an empty table. But 1 is not 1.0. Within arrays
    and tables types count.
    """
    if isinstance(value, bool | float):
        return freeze_value(value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return bytes(value)
    if isinstance(value, list | tuple | Mapping) and not value:
        return ()
    return freeze_value(value)


def _match_kind(arguments: Mapping[str, Any]) -> tuple[bool, bool]:
    kind = arguments.get("x-match", "all")
    if not isinstance(kind, str):
        raise BindingArgumentError(
            f"Invalid x-match field type {type(kind).__name__} (value {kind!r}); expected longstr"
        )
    if kind not in MATCH_KINDS:
        raise BindingArgumentError(
            f'Invalid x-match field value <<"{kind}">>; expected all, any, all-with-x, or any-with-x'
        )
    return MATCH_KINDS[kind]
