"""A request's target, the route that it finds, and the status of a refusal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.responses import Response

from broker.amqp.errors import BrokerError, NodeLost
from broker.core.definitions.reading import NotStored, NotWritten
from broker.manage.app import RouteTable
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import HttpRefused, refusal_of
from broker.manage.request_target import check_parameters, integer, path_words, query_of
from broker.operations.operation import refusing
from broker.operations.request import OperationRefused, Request


async def answer(_call: Call) -> Response:
    """Return any response."""
    return Response()


TABLE = RouteTable(
    [
        ApiRoute("GET", "/v1/things", Needs.LOGIN, answer, ("after",)),
        ApiRoute("GET", "/v1/things/{id}", Needs.LOGIN, answer),
        ApiRoute("DELETE", "/v1/things/{id}", Needs.LOGIN, answer),
        ApiRoute("POST", "/v1/things/all", Needs.LOGIN, answer),
        ApiRoute("GET", "/v1/{noun}/all/rows", Needs.LOGIN, answer),
    ]
)


def find(method: str, target: bytes) -> tuple[str, Mapping[str, str]]:
    """Return the path of the matching route and its words."""
    route, words = TABLE.find(method, path_words(target))
    return f"{route.method} {route.path}", words


def test_a_path_finds_its_route() -> None:
    """A word in braces matches any decoded segment; HEAD matches GET routes."""
    assert find("GET", b"/v1/things") == ("GET /v1/things", {})
    assert find("DELETE", b"/v1/things/a%2Fb") == ("DELETE /v1/things/{id}", {"id": "a/b"})
    assert find("HEAD", b"/v1/things/a") == ("GET /v1/things/{id}", {"id": "a"})


def test_a_literal_word_comes_first_and_hides_nothing() -> None:
    """A literal word has the routes that end there; what it has not, a word in braces may have."""
    assert find("POST", b"/v1/things/all") == ("POST /v1/things/all", {})
    assert find("GET", b"/v1/things/all") == ("GET /v1/things/{id}", {"id": "all"})
    assert find("GET", b"/v1/things/all/rows") == ("GET /v1/{noun}/all/rows", {"noun": "things"})


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/things/", "/v1/things/a/b", "/V1/things", "//v1/things", "*", ""])
def test_another_path_is_not_found(path: str) -> None:
    """An empty segment matches nothing."""
    with pytest.raises(HttpRefused) as caught:
        find("GET", path.encode())
    assert caught.value.status == 404


def test_another_method_is_told_which_there_are() -> None:
    """405 has an Allow header."""
    with pytest.raises(HttpRefused) as caught:
        find("POST", b"/v1/things/a")
    assert (caught.value.status, caught.value.headers) == (405, (("Allow", "GET, HEAD, DELETE"),))


def test_two_routes_of_one_path_are_a_mistake() -> None:
    """The table refuses a second route for a method of a path, which no one would ever reach."""
    with pytest.raises(ValueError, match="two routes are GET /v1/things/"):
        RouteTable([*TABLE.routes, ApiRoute("GET", "/v1/things/{name}", Needs.LOGIN, answer)])


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (b"/", ("",)),
        (b"/v1/seals", ("v1", "seals")),
        (b"http://broker:15672/v1/store", ("v1", "store")),
        (b"http://broker:15672", ("",)),
        (b"/a%2Fb/%C3%A9", ("a/b", "é")),
        (b"//evil.example/v1", ("", "evil.example", "v1")),
        (b"*", ()),
    ],
)
def test_a_path_is_taken_apart(target: bytes, words: tuple[str, ...]) -> None:
    """An escaped slash belongs to its segment; an absolute target gives its path."""
    assert path_words(target) == words


def test_a_query_is_taken_apart() -> None:
    """A parameter may be empty; its value is decoded as UTF-8."""
    assert query_of(b"vhost=%2F&tap=%C3%A9+x&y") == {"vhost": "/", "tap": "é x", "y": ""}


@pytest.mark.parametrize("target", [b"/%ff", b"http://[::1/"])
def test_a_path_that_cannot_be_read_is_refused(target: bytes) -> None:
    """Invalid UTF-8 and a malformed address are refused."""
    with pytest.raises(HttpRefused) as caught:
        path_words(target)
    assert caught.value.status == 400


@pytest.mark.parametrize("query", [b"x=%ff", b"a=1&a=2", b"&".join(b"p%d=" % n for n in range(65))])
def test_a_query_that_cannot_be_read_is_refused(query: bytes) -> None:
    """Invalid UTF-8, a repeated parameter and too many parameters are refused."""
    with pytest.raises(HttpRefused) as caught:
        query_of(query)
    assert caught.value.status == 400


@pytest.mark.parametrize("value", ["", "-1", "1.0", "x", "+1", "٣", str(2**53 + 1), "9" * 5000])
def test_a_number_of_the_query_is_checked(value: str) -> None:
    """A number is plain digits up to the limit."""
    with pytest.raises(HttpRefused, match="'after' should be an integer"):
        integer("after", value)


def test_an_unknown_parameter_is_refused() -> None:
    """An unknown parameter is refused, because a misspelt filter must not select everything."""
    with pytest.raises(HttpRefused, match="no parameter 'afer' here"):
        check_parameters(query_of(b"afer=1"), ["after"])


@pytest.mark.parametrize("rabbitmq", [True, False])
@pytest.mark.parametrize("kind", [NodeLost, NotStored, NotWritten])
async def test_a_request_that_may_succeed_later(kind: type[Exception], rabbitmq: bool) -> None:
    """After a lost node or a full disk the server is unavailable; other refusals are mistakes of the client. An
    operation has another error around it.
    """

    def verb(_request: Request) -> None:
        raise kind("no")

    with pytest.raises(OperationRefused) as caught:
        await refusing(verb)(Request({}))
    lost, refused, other = (refusal_of(one, rabbitmq=rabbitmq) for one in (kind("no"), caught.value, BrokerError("no")))
    assert lost is not None and refused is not None and other is not None
    assert (lost.status, lost.reason, refused.status, other.status // 100) == (503, "no", 503, 4)
