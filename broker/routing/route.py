"""A route: the destinations of a routing key, and whether they are still current."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Route:
    """The destinations of a routing key.

    Invariant: `live` is true only while the cache that made this route holds it, and `end` is the only way it becomes
        false: by a bind, unbind, delete or change of an alternate that touches it, or by its eviction. A route that
        is not cached is never live: use it once.
    Invariant: each part of a live route refers to that route, and no part refers to an ended one; so a part holds no
        more references than there are cached routes made of it.
    """

    __slots__ = ("destinations", "live", "made", "parts")

    live: bool

    def __init__(self, destinations: tuple[Any, ...], live: bool = False, parts: Sequence[Route] = ()) -> None:
        """Shapes: `parts` are the routes that this one was made from; it is live only if all of them are."""
        self.destinations = destinations
        self.live = live
        self.parts: Sequence[Route] = ()
        self.made: dict[Route, None] | None = None
        if parts and live:
            self._hold(parts)

    def _hold(self, parts: Sequence[Route]) -> None:
        if not all(part.live for part in parts):
            self.live = False
            return
        self.parts = parts
        for part in parts:
            part.add_made(self)

    def add_made(self, route: Route) -> None:
        """Note a route that was made from this one and ends with it."""
        if self.made is None:
            self.made = {}
        self.made[route] = None

    def end(self) -> None:
        """End this route and all that were made from it."""
        if not self.live:
            return
        self.live = False
        parts, self.parts = self.parts, ()
        for part in parts:
            if part.made is not None:
                part.made.pop(self, None)
        made, self.made = self.made, None
        for route in made or ():
            route.end()
