"""The bindings that lead from one exchange to one destination."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from broker.routing.binding import Binding, make_binding


class Source(Protocol):
    """The source of bindings: an exchange."""

    name: str
    deleted: bool


AnySource = TypeVar("AnySource", bound=Source)


@mypyc_attr(allow_interpreted_subclasses=True)
class Destination(Generic[AnySource]):
    """A target of bindings, which knows the exchanges that are bound to it.

    Invariant: a bundle is in the `incoming` of its destination exactly as long as it is among the `bundles` of its
        source. When the source is deleted, the bundle may stay in `incoming` for some turns.
    """

    __slots__ = ("incoming",)

    def __init__(self) -> None:
        self.incoming: dict[AnySource, Bundle[AnySource]] = {}

    @property
    def arriving(self) -> Iterator[tuple[Binding, AnySource]]:
        """Yield the bindings that lead here from exchanges that are not deleted, and those exchanges."""
        for source, bundle in self.incoming.items():
            if not source.deleted:
                for binding in bundle:
                    yield binding, source


class Bundle(Generic[AnySource]):
    """Holds the bindings from one exchange to one destination in the order of creation.

    Exchange and destination are stored once, and a binding without arguments is stored as its key alone, because one
    queue may have hundreds of thousands.
    """

    __slots__ = ("_arguments", "destination", "source")

    def __init__(self, source: AnySource, destination: Any) -> None:
        self.source = source
        self.destination = destination
        self._arguments: dict[Hashable, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._arguments)

    def __iter__(self) -> Iterator[Binding]:
        """Yield the bindings as new objects."""
        name, destination = self.source.name, self.destination
        for key, arguments in self.items():
            yield make_binding(name, destination, key, arguments)

    def __contains__(self, identity: object) -> bool:
        return identity in self._arguments

    def put(self, identity: Hashable, arguments: Mapping[str, Any]) -> None:
        """Add a new binding."""
        self._arguments[identity] = arguments

    def get(self, identity: Hashable) -> Mapping[str, Any] | None:
        """Return the arguments with which a binding was made, None if there is no such binding."""
        return self._arguments.get(identity)

    def take(self, identity: Hashable) -> Mapping[str, Any] | None:
        """Remove a binding and return the arguments with which it was made, None if there is no such binding."""
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
