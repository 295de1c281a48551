"""The table of routes: which function answers which method of which path, and who may ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from broker.manage.call import Call, Needs
from broker.manage.refusal import HttpRefused, not_found

__all__ = ["ApiRoute", "RouteTable"]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One line of the table; GET answers HEAD as well.

    Shapes: a word of `path` in braces matches one segment that is not empty, unquoted: %2F is a part of it.
    `parameters` are the names that the query may have, None for any; `repeats` those that it may have several times.
    """

    method: str
    path: str
    needs: Needs
    respond: Callable[[Call], Awaitable[Response]]
    parameters: Sequence[str] | None = None
    repeats: Collection[str] = ()


Branches = dict[str, "Branch"]


class Branch:
    """The routes that share the beginning of a path. Invariant: a literal word wins over a word in braces."""

    __slots__ = ("any_word", "routes", "words")

    def __init__(self) -> None:
        self.words: Branches = {}
        self.any_word: Branch | None = None
        self.routes: dict[str, ApiRoute] = {}


class RouteTable:
    """Finds routes. Cost: O(words of the path)."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        self.routes = tuple(routes)
        self._root = Branch()
        for route in self.routes:
            branch = self._root
            for word in route.path.split("/")[1:]:
                branch = _grown(branch, word)
            if route.method in branch.routes:
                raise ValueError(f"two routes are {route.method} {route.path}")
            branch.routes[route.method] = route

    def find(self, method: str, path: Sequence[str]) -> tuple[ApiRoute, Mapping[str, str]]:
        """Return the route of a request, and its words.

        Raises: HttpRefused: 404 for a path that is not in the table, 405 for a method that is not there for it.
        """
        wanted = "GET" if method == "HEAD" else method
        branches = [branch for branch in _branches(self._root, path, 0) if branch.routes]
        for branch in branches:
            route = branch.routes.get(wanted)
            if route is not None:
                return route, _words(route.path, path)
        if not branches:
            raise not_found()
        allowed = list(dict.fromkeys(name for branch in branches for name in branch.routes))
        if "GET" in allowed:
            allowed.insert(1 + allowed.index("GET"), "HEAD")
        raise HttpRefused(405, f"{method[:32]} is not for this path", headers=(("Allow", ", ".join(allowed)),))


def _grown(branch: Branch, word: str) -> Branch:
    """Return the branch after a word of a route's path; add it if there is none."""
    if not word.startswith("{"):
        return branch.words.setdefault(word, Branch())
    if branch.any_word is None:
        branch.any_word = Branch()
    return branch.any_word


def _branches(branch: Branch, path: Sequence[str], at: int) -> Iterable[Branch]:
    """Yield the ends of all paths of the table that match, the most literal first."""
    if at == len(path):
        yield branch
        return
    literal = branch.words.get(path[at])
    if literal is not None:
        yield from _branches(literal, path, at + 1)
    if branch.any_word is not None and path[at]:
        yield from _branches(branch.any_word, path, at + 1)


def _words(pattern: str, path: Sequence[str]) -> Mapping[str, str]:
    """Return the values of the names in braces."""
    named = zip(pattern.split("/")[1:], path, strict=True)
    return {name[1:-1]: word for name, word in named if name.startswith("{")}
