"""A route: where a message leads, and for how long that answer holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Route:
    """Where a routing key leads.

    Invariant: `live` is true only while the cache that made this route holds it, and `end` is the only way it becomes
        false: by a bind, unbind, delete or change of an alternate that touches it, or by its eviction. A route that
        was not cached is never live: use it once.
    Invariant: a live route that was made of parts is known to each of them, and to none once it has ended; so what a
        part remembers is no more than the cached routes made of it.
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
            if part.made is None:
                part.made = {}
            part.made[self] = None

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
