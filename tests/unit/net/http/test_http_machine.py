"""The HTTP machine: bytes in, requests and refusals out, within its limits."""

from __future__ import annotations

import pytest

from broker.net.http.answer import Answer
from broker.net.http.machine import HttpLimits, HttpMachine
from broker.net.http.refusal import HttpRefused
from broker.net.http.request import HttpRequest

HOST = b"Host: broker\r\n"
DATE = "Sat, 21 Nov 2026 08:00:00 GMT"


def machine(**limits: int) -> HttpMachine:
    """Return a machine with small limits."""
    return HttpMachine(HttpLimits(**{"header_max_bytes": 1024, "body_max_bytes": 100, **limits}))


def request_of(*pieces: bytes, **limits: int) -> HttpRequest | None:
    """Return the request that a machine reads from pieces of bytes."""
    made = machine(**limits)
    found = None
    for piece in pieces:
        made.receive(piece)
        found = made.next_request()
    return found


def refusal_of(*pieces: bytes, **limits: int) -> HttpRefused:
    """Return the refusal that ends a connection."""
    with pytest.raises(HttpRefused) as caught:
        request_of(*pieces, **limits)
    return caught.value


def head_of_size(size: int) -> bytes:
    """Return a request whose request line and headers have this many bytes in total."""
    frame = b"GET / HTTP/1.1\r\n" + HOST + b"X: \r\n\r\n"
    return frame.replace(b"X: ", b"X: " + b"a" * (size - len(frame)))


def test_a_request_is_the_same_however_it_is_cut() -> None:
    """Method, path, query, headers and body are read equally, byte by byte or at once."""
    whole = b"POST /v1/a%2Fb?x=1&y= HTTP/1.1\r\n" + HOST + b"X-A: 1\r\nx-a: 2\r\nContent-Length: 3\r\n\r\nabc"
    expected = HttpRequest(
        "POST", ("v1", "a/b"), {"x": "1", "y": ""}, {"host": "broker", "x-a": "1, 2", "content-length": "3"}, b"abc"
    )
    assert request_of(whole) == expected
    assert request_of(*[whole[at : at + 1] for at in range(len(whole))]) == expected


def test_a_chunked_body_is_put_together() -> None:
    """A chunked body has no announced length, but its bytes count toward the limit."""
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    found = request_of(head, b"3\r\nabc\r\n", b"2;note=x\r\nde\r\n0\r\n\r\n")
    assert found is not None and found.body == b"abcde"
    assert refusal_of(head, b"33\r\n" + b"a" * 51 + b"\r\n", b"33\r\n" + b"a" * 51 + b"\r\n").status == 413


@pytest.mark.parametrize("pieces", [1, 2, 4000])
def test_a_header_may_be_so_long_and_no_longer(pieces: int) -> None:
    """The limit is exact, also for a header that arrives in one piece."""

    def cut(block: bytes) -> list[bytes]:
        step = max(1, len(block) // pieces)
        return [block[at : at + step] for at in range(0, len(block), step)]

    assert request_of(*cut(head_of_size(1024))) is not None
    refused = refusal_of(*cut(head_of_size(1025)))
    assert (refused.status, refused.fatal) == (431, True)


def test_the_limit_of_a_header_does_not_count_what_was_sent_ahead() -> None:
    """A pipelined request counts from its own start."""
    made = machine()
    made.receive(head_of_size(1000) + head_of_size(1000) + head_of_size(1025))
    for _ in range(2):
        assert made.next_request() is not None
        made.head(Answer(204), DATE)
        made.end()
        assert made.next_cycle()
    with pytest.raises(HttpRefused) as caught:
        made.next_request()
    assert caught.value.status == 431


def test_a_body_may_be_so_long_and_no_longer() -> None:
    """A longer body is refused before it is read."""
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n"
    found = request_of(head % 100 + b"a" * 100)
    assert found is not None and len(found.body) == 100
    refused = refusal_of(head % 101)
    assert (refused.status, refused.fatal, refused.reason) == (413, True, "a body has at most 100 bytes")


@pytest.mark.parametrize(
    ("octets", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"AMQP\x00\x00\x09\x01", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 8 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 900 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505),
    ],
)
def test_what_is_no_request_ends_the_connection(octets: bytes, status: int) -> None:
    """The last response gives the reason and says that the connection closes."""
    made = machine()
    made.receive(octets)
    with pytest.raises(HttpRefused) as caught:
        made.next_request()
    assert (caught.value.status, caught.value.fatal) == (status, True)
    head = made.head(Answer(status, close=True), DATE)
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"\r\nConnection: close\r\n" in head
    made.end()
    assert not made.next_cycle()


def test_a_target_that_cannot_be_read_is_refused_and_the_connection_goes_on() -> None:
    """The request is complete, so the next one can be read."""
    made = machine()
    made.receive(b"GET /%ff HTTP/1.1\r\n" + HOST + b"\r\nGET /next HTTP/1.1\r\n" + HOST + b"\r\n")
    with pytest.raises(HttpRefused) as caught:
        made.next_request()
    assert (caught.value.status, caught.value.fatal) == (400, False)
    made.head(Answer(400), DATE)
    made.end()
    assert made.next_cycle()
    found = made.next_request()
    assert found is not None and found.path == ("next",)


def test_an_answer_to_head_has_the_length_and_no_body() -> None:
    """HEAD has the content length of GET and no body."""
    made = machine()
    made.receive(b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n")
    made.next_request()
    assert not made.has_body
    assert b"\r\nContent-Length: 5\r\n" in made.head(Answer(body=b"12345"), DATE)
    assert made.end() == b""
    assert made.next_cycle()


def test_a_client_of_http_1_0_gets_one_answer() -> None:
    """The response says that the connection closes after it."""
    made = machine()
    made.receive(b"GET / HTTP/1.0\r\n\r\n")
    assert made.next_request() is not None
    assert b"\r\nConnection: close\r\n" in made.head(Answer(body=b"x"), DATE)
    assert made.piece(b"x") + made.end() == b"x"
    assert not made.next_cycle()


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    """Expect: 100-continue is answered once, and nothing is sent without it."""
    made = machine()
    made.receive(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert made.next_request() is None
    assert made.go_on() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert made.go_on() == b""
    made.receive(b"x")
    assert made.next_request() is not None


def test_the_end_between_requests_is_no_fault_and_within_one_it_is() -> None:
    """A client may disconnect after its response; half a request is refused."""
    made = machine()
    made.receive(b"")
    assert made.next_request() is None and made.ended
    assert refusal_of(b"GET / HTT", b"").status == 400
