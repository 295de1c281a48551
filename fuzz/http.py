"""Fuzzes HTTP requests: hostile bytes become requests within the limits or one refusal, independent of chunking.

python -m fuzz.http --inputs 1000000 --seed 7
"""

from __future__ import annotations

import sys
from random import Random
from typing import Final

from broker.net.control_request import ControlRefused
from broker.net.http.answer import Answer, refusal_answer
from broker.net.http.byte_range import asked_bytes, is_known
from broker.net.http.login import credentials_of
from broker.net.http.machine import HttpLimits, HttpMachine
from broker.net.http.refusal import HttpRefused
from broker.net.http.request import HttpRequest
from broker.net.http.routes import Call, HttpRoute, RouteTable
from fuzz.campaign import main
from fuzz.mutation import pieces

LIMITS: Final = HttpLimits(header_max_bytes=1024, body_max_bytes=256)
FILE_BYTES: Final = 1000
DATE: Final = "Sat, 21 Nov 2026 08:00:00 GMT"

METHODS: Final = [
    b"GET",
    b"GET",
    b"GET",
    b"GET",
    b"POST",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"CONNECT",
    b"TRACE",
    b"get",
    b"G\xff",
]
TARGETS: Final = [
    b"/", b"/v1/seals?after=1&limit=3", b"/v1/slots/7", b"/v1/slots/%31", b"/v1/slots/..%2f..%2fetc", b"*", b"//",
    b"/v1/seals?after=-1", b"/v1/seals?after=1&after=2", b"/%ff", b"/%", b"http://[::1/", b"http://h:1/v1/slots/7",
    b"x",
]  # fmt: skip
HEADERS: Final = [
    b"Host: h", b"Host: h", b"Host: h", b"Host:", b"Content-Length: 5", b"Content-Length: 300", b"Content-Length: 5, 5",
    b"Content-Length: x", b"Content-Length: " + b"9" * 30, b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue",
    b"Authorization: Basic YTpi", b"Authorization: Basic =",
    b"Authorization: Bearer x", b"Range: bytes=1-2", b"Range: bytes=9999999-", b"Range: x",
    b"Range: bytes=-" + b"9" * 30, b'If-None-Match: "00000000", W/"1"', b"X: " + b"a" * 900, b": x", b"X\x00: y",
    b" folded", b"X: \xff",
]  # fmt: skip
BODIES: Final = [
    b"", b'{"n":1}', b"{", b"[]", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\n\r\n", b"fffffffff\r\n",
    b"100\r\n" + b"a" * 256 + b"\r\n1\r\na\r\n0\r\n\r\n", b"\x16\x03\x01", b"AMQP\x00\x00\x09\x01",
]  # fmt: skip


async def never(_call: Call) -> Answer:
    """Fail if called: only the route table is under test."""
    raise AssertionError


TABLE: Final = RouteTable(
    [
        HttpRoute("GET", "/v1/seals", never, ("after", "limit")),
        HttpRoute("GET", "/v1/slots/{seal}", never),
        HttpRoute("POST", "/v1/seal", never),
    ]
)


def check(rng: Random) -> str:
    """Send a few mutated requests, whole and in pieces, and return the outcome of the first."""
    octets = b"".join(request(rng) for _ in range(rng.randint(1, 3)))
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        octets = spoiled(rng, octets)
    together, end = talk([octets])
    cut, end_of_cut = talk(list(pieces(rng, octets)))
    assert cut == together
    assert (end is None) == (end_of_cut is None), (end, end_of_cut)
    if together:
        return judged(together[0])
    return "unfinished" if end is None else f"refused {end}"


def request(rng: Random) -> bytes:
    """Return octets that resemble a request."""
    lines = [b"%b %b HTTP/%b" % (rng.choice(METHODS), rng.choice(TARGETS), rng.choice([b"1.1"] * 9 + [b"1.0", b"2.0"]))]
    lines += [b"Host: broker"] * (rng.random() < 0.95)
    lines += rng.sample(HEADERS, rng.choice([0, 0, 0, 1, 1, 3]))
    body = rng.choice(BODIES)
    if rng.random() < 0.8:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def spoiled(rng: Random, octets: bytes) -> bytes:
    """Return the octets with some of them changed, removed or inserted."""
    at = rng.randrange(len(octets) + 1)
    new = rng.choice([b"", b"\r\n", b"\n", b"\x00", b" ", b"\xff", rng.randbytes(3), b"a" * rng.choice([1, 2000])])
    return octets[:at] + new + octets[at + rng.choice([0, 1, 1, 2, 50]) :]


def talk(chunks: list[bytes]) -> tuple[list[HttpRequest | int], int | None]:
    """Return the requests, a status for each single refusal, and the status that ended the connection."""
    machine = HttpMachine(LIMITS)
    found: list[HttpRequest | int] = []
    for chunk in [*chunks, b""]:
        machine.receive(chunk)
        while True:
            try:
                request = machine.next_request()
            except HttpRefused as refused:
                answered(machine, refusal_answer(refused))
                if refused.fatal:
                    assert not machine.next_cycle()
                    return found, refused.status
                found.append(refused.status)
            else:
                if request is None:
                    break
                assert len(request.body) <= LIMITS.body_max_bytes
                found.append(request)
                # No route has CONNECT: its answer is never a success.
                answered(machine, Answer(405 if request.method == "CONNECT" else 200, b"answer"))
            if not machine.next_cycle():
                return found, None
    return found, None


def answered(machine: HttpMachine, answer: Answer) -> None:
    """Send an answer, which must always be possible."""
    head = machine.head(answer, DATE)
    assert head.startswith(b"HTTP/1.1 ") and head.endswith(b"\r\n\r\n") and head.count(b"\r\n\r\n") == 1
    if machine.has_body:
        assert machine.piece(answer.body) == answer.body
    machine.end()


def judged(request: HttpRequest | int) -> str:
    """Process a request as the broker does before it accesses its own state."""
    if isinstance(request, int):
        return f"refused {request}"
    credentials_of(request.headers.get("authorization", ""))
    is_known(request.headers, '"00000000"')
    try:
        TABLE.find(request)
        request.check_origin()
        request.fields(["n"]).integer("n", 0)
        request.integer("after", 0)
        asked = asked_bytes(request.headers, FILE_BYTES, '"00000000"')
    except (HttpRefused, ControlRefused) as refused:
        return f"answered {getattr(refused, 'status', 400)}"
    assert asked is None or 0 <= asked[0] < asked[1] <= FILE_BYTES
    return "answered 200" if asked is None else "answered 206"


if __name__ == "__main__":
    sys.exit(main("http", check))
