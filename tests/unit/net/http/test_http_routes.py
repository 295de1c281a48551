"""The route table: 404, 405 with the allowed methods, and 400 for unknown parameters."""

from __future__ import annotations

import pytest

from broker.net.http.answer import Answer
from broker.net.http.refusal import HttpRefused
from broker.net.http.request import HttpRequest
from broker.net.http.routes import Call, HttpRoute, RouteTable


async def answer(_call: Call) -> Answer:
    """Return any response."""
    return Answer()


TABLE = RouteTable(
    [
        HttpRoute("GET", "/v1/things", answer, ("after",)),
        HttpRoute("GET", "/v1/things/{id}", answer),
        HttpRoute("DELETE", "/v1/things/{id}", answer),
    ]
)


def find(method: str, target: str) -> tuple[str, dict[str, str]]:
    """Return the path of the matching route and its words."""
    route, words = TABLE.find(HttpRequest.of(method, target, {}))
    return f"{route.method} {route.path}", words


def test_a_path_finds_its_route() -> None:
    """A word in braces matches any decoded segment; HEAD matches GET routes."""
    assert find("GET", "/v1/things?after=1") == ("GET /v1/things", {})
    assert find("DELETE", "/v1/things/a%2Fb") == ("DELETE /v1/things/{id}", {"id": "a/b"})
    assert find("HEAD", "/v1/things/a") == ("GET /v1/things/{id}", {"id": "a"})


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/things/", "/v1/things/a/b", "/V1/things", "//v1/things", "*", ""])
def test_another_path_is_not_found(path: str) -> None:
    """An empty segment matches nothing."""
    with pytest.raises(HttpRefused) as caught:
        find("GET", path)
    assert caught.value.status == 404


def test_another_method_is_told_which_there_are() -> None:
    """405 has an Allow header."""
    with pytest.raises(HttpRefused) as caught:
        find("POST", "/v1/things/a")
    assert (caught.value.status, caught.value.headers) == (405, (("Allow", "GET, HEAD, DELETE"),))


def test_a_parameter_that_a_route_does_not_know_is_refused() -> None:
    """A parameter of another route is refused."""
    with pytest.raises(HttpRefused) as caught:
        find("GET", "/v1/things/a?after=1")
    assert caught.value.status == 400
