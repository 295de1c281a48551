"""The route table: which function answers which method of which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.net.http.answer import Answer
from broker.net.http.refusal import HttpRefused, not_found
from broker.net.http.request import HttpRequest

if TYPE_CHECKING:
    from broker.core.auth.users import User

__all__ = ["Call", "HttpRoute", "RouteTable"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that found its route. Shapes: `words` are the values of the names in the route's path."""

    request: HttpRequest
    words: Mapping[str, str]
    user: User


Respond = Callable[[Call], Awaitable[Answer]]
Probe = Callable[[HttpRequest], Answer]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One line of the table. Shapes: a word of `path` in braces matches any that is not empty; `parameters` are
    the names that the query may have.

    Invariant: either `respond`, which needs a login, or `probe`, which needs none.
    """

    method: str
    path: str
    respond: Respond | None = None
    parameters: Sequence[str] = ()
    probe: Probe | None = None

    def words(self, path: Sequence[str]) -> dict[str, str] | None:
        """Return the values of the names in the path, None for another path."""
        pattern = self.path.split("/")[1:]
        if len(pattern) != len(path):
            return None
        found: dict[str, str] = {}
        for expected, word in zip(pattern, path, strict=True):
            if expected.startswith("{") and word:
                found[expected[1:-1]] = word
            elif expected != word:
                return None
        return found


class RouteTable:
    """Finds routes; HEAD uses the route of GET. Cost: O(routes), which are few."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self.routes = tuple(routes)

    def find(self, request: HttpRequest) -> tuple[HttpRoute, dict[str, str]]:
        """Return the route of a request, and its words.

        Raises: HttpRefused: 404 for a path that is not in the table, 405 for a method that is not there for it, 400 for
        a parameter that it does not know.
        """
        method = "GET" if request.method == "HEAD" else request.method
        allowed = []
        for route in self.routes:
            words = route.words(request.path)
            if words is None:
                continue
            if route.method == method:
                request.only(route.parameters)
                return route, words
            allowed += [route.method, "HEAD"] if route.method == "GET" else [route.method]
        if not allowed:
            raise not_found("nothing is here")
        raise HttpRefused(405, f"{request.method[:32]} is not for this path", (("Allow", ", ".join(allowed)),))
