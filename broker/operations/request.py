"""One request of an operation: its checked arguments, and a way to report progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Annotated, Any, Final, TypeVar, dataclass_transform, get_origin, get_type_hints

from broker.core.moving.placement import CheckPublish, permit_all
from broker.core.vhost import Vhost

ROWS_AT_ONCE: Final = 100  # rows of a long list that are made or encoded between two turns of the loop
LARGEST: Final = 1 << 53  # not every JSON reader supports larger integers


class OperationRefused(Exception):
    """An operation cannot be carried out; the text is the answer."""


class PartMissing(OperationRefused):
    """The broker lacks the part that an operation needs, such as a cluster."""


class Asker:
    """The requester of an operation. This base class stands for the broker itself, which may do everything."""

    user_name = ""
    """The name of the user who has logged in; empty for the broker itself and for the control socket."""

    def check_publish(self, vhost: Vhost) -> CheckPublish:
        """Return a check that raises ChannelError for publishes that the asker may not make in a vhost."""
        return permit_all

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        """Send progress before the answer."""

    async def send_progress(self, progress: Mapping[str, Any]) -> None:
        """Send progress, and wait until more can be sent. From then on, a client that disconnects cancels its verb."""

    def interrupted(self) -> bool:
        """Return whether the client has ended its request, to make the verb stop and answer."""
        return False

    def is_gone(self) -> bool:
        return False

    async def accepted(self) -> bool:
        """Wait until the client accepts the messages sent to it, and return whether it did."""
        return False


class Request:
    """The arguments of one request. Raises: OperationRefused, which names an argument of a wrong type or range."""

    def __init__(self, fields: Mapping[str, Any], asker: Asker | None = None) -> None:
        self._fields = fields
        self.asker = asker or Asker()

    def has(self, name: str) -> bool:
        """Return whether an argument is present and not null."""
        return self._fields.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """Return an argument of any type, or the default if it is missing."""
        return self._fields.get(name, default)

    def text(self, name: str, default: Any = MISSING) -> str:
        """Return a string, or the default if it is missing or null."""
        value = self._fields.get(name)
        if value is None and default is not MISSING:
            return str(default)
        if not isinstance(value, str):
            raise OperationRefused(f"'{name}' should be a string")
        return value

    def optional(self, name: str) -> str | None:
        """Return a string, or None if it is missing or null."""
        return None if self._fields.get(name) is None else self.text(name)

    def integer(self, name: str, default: int, low: int = 0, high: int = LARGEST) -> int:
        """Return an integer from `low` to `high`."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise OperationRefused(f"'{name}' should be an integer from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean, false by default."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise OperationRefused(f"'{name}' should be true or false")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings, empty by default."""
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise OperationRefused(f"'{name}' should be a list of strings")
        return value

    def table(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise OperationRefused(f"'{name}' should be a JSON object")
        return value


Verb = Callable[[Request], Any]
"""Carry out one request, and return a JSON value or an awaitable of one. Raises: OperationRefused."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Range:
    """The range of an integer parameter: `Annotated[int, Range(1, 10)]`."""

    low: int = 0
    high: int = LARGEST


@dataclass_transform(kw_only_default=True, frozen_default=True)
def parameters(kind: type[P]) -> type[P]:
    """Turn a class into the parameters of an operation: a frozen dataclass that `read` fills."""
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


@parameters
class OfQueue:
    """The parameters of an operation on one queue."""

    queue: str
    vhost: str = "/"


@parameters
class OfVhosts:
    """The parameters of an operation on one vhost, or on all if it is None."""

    vhost: str | None = None


def read(kind: type[P], request: Request) -> P:
    """Return the parameters of a request. Raises: OperationRefused."""
    return kind(**{name: reader(request) for name, reader in _readers(kind)})  # type: ignore[arg-type] # mypy: a class is hashable


@cache
def _readers(kind: type[Any]) -> tuple[tuple[str, Callable[[Request], Any]], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple([(field.name, _reader(field, hints[field.name])) for field in fields(kind)])


def _reader(field: Field[Any], hint: Any) -> Callable[[Request], Any]:
    """Return the function that reads a parameter of this type from a request."""
    name, default = field.name, field.default
    required = default is MISSING and field.default_factory is MISSING
    if get_origin(hint) is Annotated:
        low, high = hint.__metadata__[0].low, hint.__metadata__[0].high
        if default is None:
            return lambda request: request.integer(name, low, low, high) if request.has(name) else None
        number: Any = default
        return lambda request: request.integer(name, number, low, high)
    if hint is bool:
        return lambda request: request.flag(name)
    if hint is str:
        return (lambda request: request.text(name)) if required else (lambda request: request.text(name, default))
    if hint == str | None:
        return lambda request: request.optional(name)
    if hint == list[str]:
        return lambda request: request.texts(name)
    if hint == list[str] | None:
        return lambda request: request.texts(name) if request.has(name) else None
    assert hint == dict[str, Any], f"no request has a {hint}"
    return lambda request: request.table(name) if required or request.has(name) else {}
