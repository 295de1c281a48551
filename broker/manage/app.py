"""The ASGI application: find the route of a request, authenticate the caller, and turn errors into answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.amqp.errors import UNEXPECTED
from broker.core.auth.users import User
from broker.event_log import get_logger
from broker.manage import control_route, probes, slot_routes
from broker.manage.answers import Response, answering, no_content, refusal_response
from broker.manage.call import READING, ApiRoute, Call, Needs
from broker.manage.client import ApiClient
from broker.manage.login import HttpLogin, LoggedIn, LoginSessions
from broker.manage.managed_broker import ManagedBroker
from broker.manage.metrics.shared_scrapes import metric_routes
from broker.manage.origin import check_change, check_host
from broker.manage.page.files import page_routes
from broker.manage.probes import PROBES
from broker.manage.refusal import HttpRefused, not_found, refusal_of
from broker.manage.request_target import check_parameters, path_words, query_of
from broker.store.damage import StoreFailed

NOUNS: Final = (
    "bindings channels connections dead_letters definitions exchanges health limits live logins nodes overview "
    "parameters pipeline policies queue_messages queues retained route_test running_parts users vhosts"
).split()
"""The modules of `broker.manage.api`, each of which defines ROUTES."""
NOBODY: Final = LoggedIn(User(""), lambda: True)
VERSIONS: Final = ("1.0", "1.1")
LINE_BYTES: Final = len(" ? HTTP/1.1\r\n\r\n")
FIELD_BYTES: Final = len(": \r\n")

_log = get_logger()


def http_routes() -> list[ApiRoute]:
    """Return the routes of the HTTP port."""
    own = (probes, slot_routes, control_route)
    return [*(route for module in own for route in module.ROUTES), *api_routes(), *page_routes()]


def api_routes() -> list[ApiRoute]:
    """Return the routes under /api."""
    return [route for noun in NOUNS for route in import_module(f"broker.manage.api.{noun}").ROUTES]


def metrics_routes() -> list[ApiRoute]:
    """Return the routes of the metrics listener, none of which needs a login."""
    return [*probes.ROUTES, *metric_routes()]


def application(broker: ManagedBroker, routes: Iterable[ApiRoute]) -> ASGIApp:
    """Return the ASGI application for these routes."""
    sessions = LoginSessions(broker.logins.users, lambda: broker.settings().http)
    return Application(broker, RouteTable(routes), HttpLogin(broker.logins, sessions))


Branches = dict[str, "Branch"]


class Branch:
    """The routes that share the beginning of a path. A literal word takes precedence over one in braces."""

    def __init__(self) -> None:
        self.words: Branches = {}
        self.any_word: Branch | None = None
        self.routes: dict[str, ApiRoute] = {}

    def grow(self, word: str) -> Branch:
        """Return the branch for a word of a route's path; add it if it is missing."""
        if not word.startswith("{"):
            return self.words.setdefault(word, Branch())
        if self.any_word is None:
            self.any_word = Branch()
        return self.any_word


class RouteTable:
    """The routes by path and method."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        self.routes = tuple(routes)
        self._root = Branch()
        for route in self.routes:
            branch = self._root
            for word in route.path.split("/")[1:]:
                branch = branch.grow(word)
            if route.method in branch.routes:
                raise ValueError(f"two routes are {route.method} {route.path}")
            branch.routes[route.method] = route

    def find(self, method: str, path: Sequence[str]) -> tuple[ApiRoute, Mapping[str, str]]:
        """Return the route of a request, and the values of the words in braces.

        Raises: HttpRefused: 404 for an unknown path, 405 for a path without this method.
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
        raise HttpRefused(405, f"{method[:32]} is not allowed for this path", headers=(("Allow", ", ".join(allowed)),))


def _branches(branch: Branch, path: Sequence[str], at: int) -> Iterable[Branch]:
    """Yield the branches at which matching paths end, the most literal path first."""
    if at == len(path):
        yield branch
        return
    literal = branch.words.get(path[at])
    if literal is not None:
        yield from _branches(literal, path, at + 1)
    if branch.any_word is not None and path[at]:
        yield from _branches(branch.any_word, path, at + 1)


def _words(pattern: str, path: Sequence[str]) -> Mapping[str, str]:
    """Return the words of a path by their names in braces."""
    named = zip(pattern.split("/")[1:], path, strict=True)
    return {name[1:-1]: word for name, word in named if name.startswith("{")}


class Application:
    """Answer requests according to a table of routes."""

    def __init__(self, broker: ManagedBroker, table: RouteTable, login: HttpLogin) -> None:
        self._broker = broker
        self._table = table
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: ApiClient = scope["state"]["client"]
        rabbitmq = scope["path"].startswith("/api/")
        async with answering(scope, send) as sending:
            try:
                response = await self._answer(Request(scope, _receiving(receive, client)), client)
            except Exception as error:  # noqa: BLE001 - one request must not end the broker
                response = refusal_response(_refused(error, client, rabbitmq=rabbitmq), rabbitmq=rabbitmq)
            await response(scope, receive, sending)
            _log.debug("http.answered", conn=client.peer.name, method=scope["method"], status=response.status_code)

    async def _answer(self, request: Request, client: ApiClient) -> Response:
        scope = request.scope
        check_head(scope, self._broker.settings().http.header_max_bytes)
        route, words = self._table.find(scope["method"], path_words(scope["raw_path"]))
        query = query_of(scope["query_string"], route.repeats)
        if route.parameters is not None:
            check_parameters(query, route.parameters)
        if route.path not in PROBES and scope["scheme"] != "https":  # with TLS, the certificate proves the name
            check_host(request.headers, client.peer, self._broker.settings().http.hosts)
        caller = NOBODY if route.needs is Needs.NOTHING else await self._login.caller(request.headers, client)
        route.needs.check(caller.user)
        if route.needs is not Needs.NOTHING:
            client.admit(caller.user.name)
        if scope["method"] not in READING:
            check_change(request.headers, by_cookie=caller.by_cookie)
        call = Call(self._broker, request, client, caller.user, self._login, caller.lasts, words, query, route.needs)
        response = await route.respond(call)
        return no_content() if response is None else response


def check_head(scope: Scope, header_max_bytes: int) -> None:
    """Refuse a head that is too long, ambiguous, or of another HTTP version. Raises: HttpRefused."""
    size_bytes = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"]) + LINE_BYTES
    size_bytes += sum(len(name) + len(value) + FIELD_BYTES for name, value in scope["headers"])
    if size_bytes > header_max_bytes:  # h11 measures only heads that arrive in several pieces
        raise HttpRefused(431, f"a header has at most {header_max_bytes} bytes", fatal=True)
    if scope["http_version"] not in VERSIONS:
        raise HttpRefused(505, "the server supports HTTP/1.0 and HTTP/1.1", fatal=True)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _value in scope["headers"]}:
        raise HttpRefused(400, "Content-Length and Transfer-Encoding exclude each other", fatal=True)


def _receiving(receive: Receive, client: ApiClient) -> Receive:
    """Return a `receive` that raises the client's `fault` once that is set."""

    async def receiving() -> Message:
        message = await receive()
        if client.fault is not None:
            raise client.fault
        return message

    return receiving


def _refused(error: Exception, client: ApiClient, *, rabbitmq: bool) -> HttpRefused:
    if isinstance(error, StoreFailed):
        _log.warning("http.store_failed", conn=client.peer.name, reason=str(error))
        return HttpRefused(503, "the store cannot be read or written; the broker's log says why")
    refused = refusal_of(error, rabbitmq=rabbitmq)
    if refused is None:
        _log.error("http.failed", conn=client.peer.name, exc_info=error)
        refused = HttpRefused(500, UNEXPECTED)
    return refused
