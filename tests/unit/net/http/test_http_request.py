"""A request's target and body: what is accepted, and what is refused with one line."""

from __future__ import annotations

import pytest

from broker.net.control_request import ControlRefused
from broker.net.http.refusal import HttpRefused
from broker.net.http.request import HttpRequest


def asked(target: str = "/", method: str = "POST", body: bytes = b"", **headers: str) -> HttpRequest:
    """Return a request for a target."""
    return HttpRequest.of(method, target, headers, body)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", ("",), {}),
        ("/v1/seals?after=3", ("v1", "seals"), {"after": "3"}),
        ("http://broker:15672/v1/store?x", ("v1", "store"), {"x": ""}),
        ("/a%2Fb/%C3%A9?vhost=%2F&tap=%C3%A9+x", ("a/b", "é"), {"vhost": "/", "tap": "é x"}),
        ("//evil.example/v1", ("v1",), {}),
        ("*", (), {}),
    ],
)
def test_a_target_is_taken_apart(target: str, path: tuple[str, ...], query: dict[str, str]) -> None:
    """An escaped slash belongs to its segment; an absolute target gives its path."""
    found = asked(target)
    assert (found.path, found.query) == (path, query)


@pytest.mark.parametrize(
    "target",
    ["/%ff", "/?x=%ff", "/?a=1&a=2", "/?" + "&".join(f"p{n}=" for n in range(33)), "http://[::1/"],
)
def test_a_target_that_cannot_be_read_is_refused(target: str) -> None:
    """Invalid UTF-8, a repeated parameter, too many parameters and a malformed address are refused."""
    with pytest.raises(HttpRefused) as caught:
        asked(target)
    assert caught.value.status == 400


@pytest.mark.parametrize("value", ["", "-1", "1.0", "x", "+1", "٣", str(2**53 + 1), "9" * 5000])
def test_a_number_of_the_query_is_checked(value: str) -> None:
    """A number is plain digits up to the limit."""
    with pytest.raises(HttpRefused, match="'after' should be an integer"):
        HttpRequest("GET", (), {"after": value}, {}).integer("after", 0)


def test_an_unknown_parameter_is_refused() -> None:
    """An unknown parameter is refused, because a misspelt filter must not select everything."""
    with pytest.raises(HttpRefused, match="no parameter 'afer' here"):
        asked("/?afer=1").only(["after"])


@pytest.mark.parametrize("body", [b"[]", b"1", b"{", b"\xff", b'{"x": NaN}', b'{"y": 1}', b"[" * 5000])
def test_a_body_that_is_no_object_of_known_fields_is_refused(body: bytes) -> None:
    """A body that is no JSON object, or has unknown fields, is refused with one line."""
    with pytest.raises(HttpRefused) as caught:
        asked(body=body).fields(["x"])
    assert caught.value.status == 400 and "\n" not in caught.value.reason


def test_the_fields_of_a_body_are_checked_where_they_are_asked_for() -> None:
    """A field of a wrong type is refused by name; a missing body has no fields."""
    assert asked(body=b'{"x": "a"}').fields(["x"]).text("x") == "a"
    assert asked().fields(["x"]).optional("x") is None
    with pytest.raises(ControlRefused, match="'x' should be a string"):
        asked(body=b'{"x": 1}').fields(["x"]).text("x")


@pytest.mark.parametrize(
    ("method", "origin", "passes"),
    [
        ("POST", "http://broker:15672", True),
        ("POST", "https://evil.example", False),
        ("DELETE", "null", False),
        ("GET", "https://evil.example", True),
    ],
)
def test_a_page_of_another_site_changes_nothing(method: str, origin: str, passes: bool) -> None:
    """A browser adds stored passwords, so changes are accepted from the broker's own origin only."""
    request = asked(method=method, origin=origin, host="broker:15672")
    if passes:
        request.check_origin()
    else:
        with pytest.raises(HttpRefused) as caught:
            request.check_origin()
        assert caught.value.status == 403
