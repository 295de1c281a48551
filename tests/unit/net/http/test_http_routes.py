"""The route table: 404, 405 with what is allowed, and 400 for what a route does not know."""

from __future__ import annotations

import pytest

from broker.net.http.answer import Answer
from broker.net.http.refusal import HttpRefused
from broker.net.http.request import HttpRequest
from broker.net.http.routes import Call, HttpRoute, RouteTable


async def answer(_call: Call) -> Answer:
    """Answer anything."""
    return Answer()


TABLE = RouteTable(
    [
        HttpRoute("GET", "/v1/things", answer, ("after",)),
        HttpRoute("GET", "/v1/things/{id}", answer),
        HttpRoute("DELETE", "/v1/things/{id}", answer),
    ]
)


def find(method: str, target: str) -> tuple[str, dict[str, str]]:
    """Return the path of the route that was found, with its words."""
    route, words = TABLE.find(HttpRequest.of(method, target, {}))
    return f"{route.method} {route.path}", words


def test_a_path_finds_its_route() -> None:
    """A word in braces stands for any, decoded; HEAD finds what GET does."""
    assert find("GET", "/v1/things?after=1") == ("GET /v1/things", {})
    assert find("DELETE", "/v1/things/a%2Fb") == ("DELETE /v1/things/{id}", {"id": "a/b"})
    assert find("HEAD", "/v1/things/a") == ("GET /v1/things/{id}", {"id": "a"})


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/things/", "/v1/things/a/b", "/V1/things", "//v1/things", "*", ""])
def test_another_path_is_not_found(path: str) -> None:
    """A word that is empty is none."""
    with pytest.raises(HttpRefused) as caught:
        find("GET", path)
    assert caught.value.status == 404


def test_another_method_is_told_which_there_are() -> None:
    """405 with Allow."""
    with pytest.raises(HttpRefused) as caught:
        find("POST", "/v1/things/a")
    assert (caught.value.status, caught.value.headers) == (405, (("Allow", "GET, HEAD, DELETE"),))


def test_a_parameter_that_a_route_does_not_know_is_refused() -> None:
    """Of the right route, not of any."""
    with pytest.raises(HttpRefused) as caught:
        find("GET", "/v1/things/a?after=1")
    assert caught.value.status == 400
