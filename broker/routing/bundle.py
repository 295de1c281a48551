"""A binding, and the bundle of all bindings from one exchange to one destination."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from mypy_extensions import mypyc_attr

Arguments = Mapping[str, Any]
"""The argument table of a binding."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A link from an exchange to a destination; exchange, destination, key and arguments identify it.

    Source: RabbitMQ: bindings that differ only in their arguments are two bindings, for every exchange type.
    """

    exchange: str
    destination: Any
    key: str
    arguments: Mapping[str, Any] = field(compare=False)
    frozen_arguments: Hashable = field(repr=False)


def make_binding(exchange: str, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> Binding:
    """Return a binding that equals any other of the same exchange, destination, key and arguments."""
    return Binding(exchange, destination, key, arguments, freeze_value(arguments) if arguments else None)


def binding_identity(key: str, arguments: Mapping[str, Any]) -> Hashable:
    """Return the key and arguments that identify a binding among those of its exchange and destination."""
    return (key, freeze_value(arguments)) if arguments else key


def freeze_value(value: Any) -> Hashable:
    """Return a hashable form of a field value, by which the arguments of bindings are compared.

    Integers of all widths are one type, as in RabbitMQ, but true, 1 and 1.0 all differ. The order of a table's fields
    does not matter. Cost: the size of the value; its depth was bounded when it was decoded.
    """
    if value is None or isinstance(value, str | bool | int):
        return (type(value).__name__, value)
    if isinstance(value, Mapping):
        fields = [(key, freeze_value(item)) for key, item in value.items()]  # depth: checked when it was decoded
        return ("table", tuple(sorted(fields, key=itemgetter(0))))
    if isinstance(value, list | tuple):
        return ("array", tuple([freeze_value(item) for item in value]))  # depth: as above
    if isinstance(value, bytes | bytearray):
        return ("bytes", bytes(value))
    if isinstance(value, float):
        return ("float", value.hex())  # a NaN must equal itself, or its binding could never be removed
    if isinstance(value, Decimal):
        return ("decimal", str(value))  # the scale is part of the value on the wire
    return (type(value).__name__, value)


class Source(Protocol):
    """The source of bindings: an exchange."""

    name: str
    deleted: bool


AnySource = TypeVar("AnySource", bound=Source)


@mypyc_attr(allow_interpreted_subclasses=True)
class Destination(Generic[AnySource]):
    """A destination of bindings: a queue or an exchange.

    Shapes: `incoming` maps each exchange that is bound to this destination to the bundle of the bindings.
    Invariant: a bundle is in `incoming` while it is among the `bundles` of its source. After the source is deleted, the
        bundle may stay in `incoming` for some turns of the loop.
    """

    __slots__ = ("incoming",)

    def __init__(self) -> None:
        self.incoming: dict[AnySource, Bundle[AnySource]] = {}

    @property
    def incoming_bindings(self) -> Iterator[tuple[Binding, AnySource]]:
        """Yield the bindings to this destination, with their exchanges; skip deleted exchanges."""
        for source, bundle in self.incoming.items():
            if not source.deleted:
                for binding in bundle:
                    yield binding, source


class Bundle(Generic[AnySource]):
    """The bindings from one exchange to one destination, in the order of creation.

    Exchange and destination are stored once, and a binding without arguments is stored as its key alone, because one
    queue may have hundreds of thousands of bindings.
    """

    __slots__ = ("_arguments", "destination", "source")

    def __init__(self, source: AnySource, destination: Any) -> None:
        self.source = source
        self.destination = destination
        self._arguments: dict[Hashable, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._arguments)

    def __bool__(self) -> bool:
        return len(self._arguments) > 0

    def __iter__(self) -> Iterator[Binding]:
        """Yield the bindings as new objects."""
        name, destination = self.source.name, self.destination
        for key, arguments in self.items():
            yield make_binding(name, destination, key, arguments)

    def __contains__(self, identity: object) -> bool:
        return identity in self._arguments

    def put(self, identity: Hashable, arguments: Mapping[str, Any]) -> None:
        self._arguments[identity] = arguments

    def get(self, identity: Hashable) -> Mapping[str, Any] | None:
        """Return the arguments of a binding, or None if there is no such binding."""
        return self._arguments.get(identity)

    def take(self, identity: Hashable) -> Mapping[str, Any] | None:
        """Remove a binding and return its arguments, or None if there is no such binding."""
        return self._arguments.pop(identity, None)

    def pop(self) -> tuple[str, Mapping[str, Any]]:
        """Remove the last binding and return its key and arguments. Raises: KeyError if there is none."""
        identity, arguments = self._arguments.popitem()
        return _key(identity), arguments

    def items(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the key and the arguments of each binding."""
        for identity, arguments in self._arguments.items():
            yield _key(identity), arguments

    def copy(self) -> Bundle[AnySource]:
        """Return a snapshot of the bindings. Cost: O(n) references."""
        bundle = Bundle(self.source, self.destination)
        bundle._arguments = self._arguments.copy()
        return bundle


def _key(identity: Hashable) -> str:
    key: str = identity if isinstance(identity, str) else identity[0]  # type: ignore[index]
    return key
