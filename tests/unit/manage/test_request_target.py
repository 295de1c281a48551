"""A request's target: what is accepted, and what is refused with one line."""

from __future__ import annotations

import pytest

from broker.manage.refusal import HttpRefused
from broker.manage.request_target import integer, only, path_words, query_of


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
        only(query_of(b"afer=1"), ["after"])
