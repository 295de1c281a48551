"""A route: the destinations of a routing key, and whether they are still current."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Dependent:
    """An object made from a route, which ends with it. An ended one refers to no destination."""

    __slots__ = ()

    def end(self) -> None:
        """End it, because a route that it was made from has ended."""
        raise NotImplementedError


class Route(Dependent):
    """The destinations of a routing key.

    Invariant: `live` is true only while the cache that made this route holds it, and `end` is the only way it becomes
        false: by a bind, unbind, delete or change of an alternate that touches it, or by its eviction. A route that
        is not cached is never live: use it once.
    Invariant: each part of a live route refers to that route, and no part refers to an ended one; so a part holds no
        more references than there are cached routes and publishes made of it. An ended route has no destinations.
    """

    __slots__ = ("destinations", "live", "made", "parts")

    live: bool

    def __init__(self, destinations: tuple[Any, ...], live: bool = False, parts: Sequence[Route] = ()) -> None:
        """Shapes: `parts` are the routes that this one was made from; it is live only if all of them are."""
        self.destinations = destinations
        self.live = live
        self.parts: Sequence[Route] = ()
        self.made: Dependent | dict[Dependent, None] | None = None  # most have one, for which a dict is large
        if parts and live:
            self._hold(parts)

    def _hold(self, parts: Sequence[Route]) -> None:
        if not all(part.live for part in parts):
            self.live = False
            return
        self.parts = parts
        for part in parts:
            part.add_made(self)

    def add_made(self, made: Dependent) -> None:
        """Record an object built from this route, which ends with it."""
        known = self.made
        if known is None or known is made:
            self.made = made
        elif isinstance(known, dict):
            known[made] = None
        else:
            self.made = {known: None, made: None}

    def drop_made(self, made: Dependent) -> None:
        """Drop an object built from this route, because it has ended separately."""
        known = self.made
        if known is made:
            self.made = None
        elif isinstance(known, dict):
            known.pop(made, None)

    def end(self) -> None:
        """End this route and all that was made from it."""
        if not self.live:
            return
        self.live = False
        self.destinations = ()
        parts, self.parts = self.parts, ()
        for part in parts:
            part.drop_made(self)
        made, self.made = self.made, None
        if isinstance(made, dict):
            for one in made:
                one.end()
        elif made is not None:
            made.end()
