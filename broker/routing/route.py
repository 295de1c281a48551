"""Routes: the destinations of routing keys, with a flag that says whether they are current."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Dependent:
    """An object that is built from a route and ends with it."""

    __slots__ = ()

    def end(self) -> None:
        """End this object, because a route that it was built from has ended."""
        raise NotImplementedError


class Route(Dependent):
    """The destinations of a routing key.

    Invariant: `live` is true only while the creator (a cache, an exchange, the router) keeps the route. A change that
        affects the route, or its eviction from a cache, ends it. A route that is not kept is never live: use it once.
    Invariant: a live route is a dependent of each of its parts. An ended route is a dependent of none, and it has no
        destinations.
    """

    __slots__ = ("dependents", "destinations", "live", "parts")

    live: bool

    def __init__(self, destinations: tuple[Any, ...], live: bool = False, parts: Sequence[Route] = ()) -> None:
        """Shapes: `parts` are the routes that this route is built from; it is live only if all of them are."""
        self.destinations = destinations
        self.live = live
        self.parts: Sequence[Route] = ()
        self.dependents: Dependent | dict[Dependent, None] | None = None  # usually one, for which a dict would be large
        if parts and live:
            self._depend_on(parts)

    def _depend_on(self, parts: Sequence[Route]) -> None:
        if not all(part.live for part in parts):
            self.live = False
            return
        self.parts = parts
        for part in parts:
            part.add_dependent(self)

    def add_dependent(self, dependent: Dependent) -> None:
        """Add an object built from this route, which ends with the route."""
        known = self.dependents
        if known is None or known is dependent:
            self.dependents = dependent
        elif isinstance(known, dict):
            known[dependent] = None
        else:
            self.dependents = {known: None, dependent: None}

    def remove_dependent(self, dependent: Dependent) -> None:
        """Remove an object built from this route, because the object has ended or is no longer cached."""
        known = self.dependents
        if known is dependent:
            self.dependents = None
        elif isinstance(known, dict):
            known.pop(dependent, None)

    def end(self) -> None:
        """End this route and all objects built from it."""
        if not self.live:
            return
        self.live = False
        self.destinations = ()
        parts, self.parts = self.parts, ()
        for part in parts:
            part.remove_dependent(self)
        dependents, self.dependents = self.dependents, None
        if isinstance(dependents, dict):
            for dependent in dependents:
                dependent.end()
        elif dependents is not None:
            dependents.end()
