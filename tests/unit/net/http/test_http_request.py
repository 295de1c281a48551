"""A request's target and body: what is taken, and what is refused in one line."""

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
    """An escaped slash is part of its word; an absolute target is its path."""
    found = asked(target)
    assert (found.path, found.query) == (path, query)


@pytest.mark.parametrize(
    "target",
    ["/%ff", "/?x=%ff", "/?a=1&a=2", "/?" + "&".join(f"p{n}=" for n in range(33)), "http://[::1/"],
)
def test_a_target_that_cannot_be_read_is_refused(target: str) -> None:
    """No UTF-8, a parameter twice, too many of them, a broken address."""
    with pytest.raises(HttpRefused) as caught:
        asked(target)
    assert caught.value.status == 400


@pytest.mark.parametrize("value", ["", "-1", "1.0", "x", "+1", "٣", str(2**53 + 1), "9" * 5000])
def test_a_number_of_the_query_is_checked(value: str) -> None:
    """Only plain digits up to the limit are one."""
    with pytest.raises(HttpRefused, match="'after' should be an integer"):
        HttpRequest("GET", (), {"after": value}, {}).integer("after", 0)


def test_an_unknown_parameter_is_refused() -> None:
    """A misspelt filter must not mean everything."""
    with pytest.raises(HttpRefused, match="no parameter 'afer' here"):
        asked("/?afer=1").only(["after"])


@pytest.mark.parametrize("body", [b"[]", b"1", b"{", b"\xff", b'{"x": NaN}', b'{"y": 1}', b"[" * 5000])
def test_a_body_that_is_no_object_of_known_fields_is_refused(body: bytes) -> None:
    """One line, whatever it is."""
    with pytest.raises(HttpRefused) as caught:
        asked(body=body).fields(["x"])
    assert caught.value.status == 400 and "\n" not in caught.value.reason


def test_the_fields_of_a_body_are_checked_where_they_are_asked_for() -> None:
    """A wrong type names the field; no body is no field."""
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
    """A browser adds the password that its user once gave, so what changes something has to come from here."""
    request = asked(method=method, origin=origin, host="broker:15672")
    if passes:
        request.check_origin()
    else:
        with pytest.raises(HttpRefused) as caught:
            request.check_origin()
        assert caught.value.status == 403
