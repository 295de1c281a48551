"""The headers exchange, and the arguments of its bindings as predicates over message headers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

from broker.routing.bundle import Arguments, binding_identity, freeze_value
from broker.routing.exchange import BARE, Exchange, ExchangeProperties, MessageFields
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route


class BindingArgumentError(ValueError):
    """An exchange cannot use the key, the arguments or the destination of a binding."""


MATCH_KINDS = {
    "all": (True, False),
    "any": (False, False),
    "all-with-x": (True, True),
    "any-with-x": (False, True),
}
"""x-match -> (whether all fields must match, whether fields that begin with `x-` count)."""


class HeadersPredicate:
    """The arguments of a binding as a test of message headers. A void value requires only that the field is present.
    Without fields to compare, `all` matches every message and `any` none.

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
    """Return a hashable form of a field value, by which headers are compared as in RabbitMQ.

    RabbitMQ compares the outermost values without their types: integers of all widths are one type, a timestamp equals
    its seconds, a long string equals the binary of the same octets, and an empty array equals an empty table. But 1 and
    1.0 differ, and within arrays and tables types count.
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


class HeadersExchange(Exchange):
    """An exchange that routes a message to the destinations whose binding arguments its headers satisfy."""

    type = "headers"
    by_headers = True

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        super().__init__(name, properties)
        self._predicates: dict[tuple[Hashable, Hashable], HeadersPredicate] = {}

    def route(self, key: str) -> Route:
        return self.standing

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        return self.match_headers(fields.headers) + self.listeners.match(keys)

    def matches(self, key: str, arguments: Arguments, keys: Sequence[str], fields: MessageFields) -> bool:
        return HeadersPredicate(arguments).matches(comparable_headers(fields.headers))

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Cost: all bindings, as in RabbitMQ."""
        comparable = comparable_headers(headers)
        matched: dict[Any, None] = {}
        unrouted = self._unrouted
        for (destination, _identity), predicate in self._predicates.items():
            if destination not in matched and destination not in unrouted and predicate.matches(comparable):
                matched[destination] = None
        return tuple(matched)

    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None:
        self._predicates[destination, binding_identity(key, arguments)] = HeadersPredicate(arguments)

    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None:
        del self._predicates[destination, binding_identity(key, arguments)]

    def _drop_routes(self) -> None:
        """Do nothing: the only route is the standing one, which the base class ends."""
