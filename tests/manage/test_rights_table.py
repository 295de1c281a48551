"""Who may use which route: the table of all routes, walked with every tag and without a login."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from broker.core.auth.peer import Peer
from broker.manage.answers import no_content
from broker.manage.api_route import ApiRoute
from broker.manage.app import application, http_routes, metrics_routes
from broker.manage.call import Call
from broker.manage.client import ApiClient
from broker.manage.needs import Needs
from broker.manage.v1.file_reads import FileReads
from broker.server import BrokerServer
from broker.store.files import Files
from tests.deadline import DEADLINE_S
from tests.in_process import running_broker

TAGS: tuple[str, ...] = ("", "management", "policymaker", "monitoring", "administrator")
# Source: RabbitMQ's table of management permissions.
ENOUGH: dict[Needs, set[str | None]] = {
    Needs.NOTHING: {None, *TAGS},
    Needs.LOGIN: {*TAGS},
    Needs.MANAGEMENT: {"management", "policymaker", "monitoring", "administrator"},
    Needs.POLICYMAKER: {"policymaker", "administrator"},
    Needs.MONITORING: {"monitoring", "administrator"},
    Needs.ADMINISTRATOR: {"administrator"},
}
OPEN = {"/healthz", "/readyz", "/api/session", "/api/auth"}
"""Routes that need no login, beside those of the page's files and of the port for metrics."""


async def touched(_call: Call) -> Response:
    """Answer in place of a route."""
    return no_content()


async def asked(app: Any, method: str, path: str, user: str | None) -> tuple[int, dict[str, str]]:
    """Return status and body of an answer to a user, who has the tag that he is called like."""
    headers = [(b"host", b"localhost")]
    if user is not None:
        headers.append((b"authorization", b"Basic " + b64encode(f"{user or 'plain'}:pass".encode())))
    client = ApiClient(Peer("127.0.0.1", 1), lambda: False, lambda: None, DEADLINE_S)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "headers": headers,
        "state": {"client": client},
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body) if body else {}


def users_of_each_tag(broker: BrokerServer) -> None:
    """Add a user for each tag, and one without."""
    for tag in TAGS:
        broker.administration.users.add(tag or "plain", "pass", [tag] if tag else [])


def routes_of(broker: BrokerServer) -> list[ApiRoute]:
    """Return all routes of the port for the API."""
    return http_routes(broker._managed, FileReads(Files()))


async def test_each_route_admits_who_has_what_it_needs(tmp_path: Path) -> None:
    """No login and a missing tag are 401 at every route and for every tag; a tag that suffices reaches the route."""
    async with running_broker(tmp_path / "data") as broker:
        users_of_each_tag(broker)
        routes = [replace(route, respond=touched) for route in routes_of(broker)]
        app = application(broker._managed, routes)
        for route in routes:
            path = route.path.replace("{", "").replace("}", "")
            callers: tuple[str | None, ...] = (None, *TAGS)
            for user in callers:
                status, body = await asked(app, route.method, path, user)
                admitted = user in ENOUGH[route.needs]
                assert status == (204 if admitted else 401), (route.method, route.path, user, body)
                if not admitted and path.startswith("/api/"):
                    word = "not_authorized" if user is None else "not_authorised"
                    assert body["error"] == word, (route.method, route.path, user)


async def test_only_these_routes_are_open(tmp_path: Path) -> None:
    """Nothing else answers without a login: a new route has to be added here on purpose."""
    async with running_broker(tmp_path / "data") as broker:
        found = {route.path for route in routes_of(broker) if route.needs is Needs.NOTHING}
        assert {path for path in found if path.startswith(("/api/", "/v1/")) or "z" in path} == OPEN
        for route in routes_of(broker):
            assert route.needs is not Needs.LOGIN or route.path.startswith("/v1/"), route.path


async def test_the_port_for_metrics_has_nothing_that_needs_a_login(tmp_path: Path) -> None:
    """It shows numbers and changes nothing."""
    async with running_broker(tmp_path / "data"):
        routes = metrics_routes()
        assert {(route.method, route.needs) for route in routes} == {("GET", Needs.NOTHING)}
        assert not any(route.path.startswith(("/api/", "/v1/")) for route in routes)


@pytest.mark.parametrize("tags", [("monitoring",), ("administrator",), ("management",), ()])
async def test_a_vhost_is_for_those_with_a_right_in_it(tmp_path: Path, tags: tuple[str, ...]) -> None:
    """Who looks after the broker reads about every vhost; a change, or another user, needs a right in it."""

    async def in_vhost(call: Call) -> Response:
        call.vhost()
        return no_content()

    async with running_broker(tmp_path / "data") as broker:
        broker.administration.users.add("ann", "pass", tags)
        routes = [
            ApiRoute("GET", "/api/things/{vhost}", Needs.LOGIN, in_vhost),
            ApiRoute("PUT", "/api/things/{vhost}", Needs.LOGIN, in_vhost),
            ApiRoute("PUT", "/api/all/{vhost}", Needs.ADMINISTRATOR, in_vhost),
        ]
        app = application(broker._managed, routes)
        every = bool({"monitoring", "administrator"} & set(tags))
        expected = [204 if every else 401, 401, 204 if "administrator" in tags else 401]

        async def statuses() -> list[int]:
            answers = [await asked(app, route.method, route.path.replace("{vhost}", "%2F"), "ann") for route in routes]
            return [status for status, _body in answers]

        assert await statuses() == expected
        broker.listener._permissions.set("ann", "/", "", "", "")
        assert (await statuses())[:2] == [204, 204]
        assert (await asked(app, "GET", "/api/things/nowhere", "ann"))[0] == 404
