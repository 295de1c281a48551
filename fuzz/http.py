"""Fuzzes the HTTP port: hostile bytes get answers within the limits, independent of how they are cut into pieces.

python -m fuzz.http --inputs 1000000 --seed 7
"""

from __future__ import annotations

import asyncio
import re
import sys
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import structlog
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.server import ServerState

from broker.core.auth.logins import Logins
from broker.core.auth.users import User, Users
from broker.manage.answers import json_answer
from broker.manage.app import application
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.client_protocol import ClientProtocol
from broker.manage.request_target import integer
from broker.manage.slot_routes import asked_bytes, is_known
from broker.settings import Settings
from fuzz.campaign import main
from fuzz.mutation import pieces

SETTINGS: Final = Settings(http={"header_max_bytes": 1024, "body_max_bytes": 1024, "timeout_ms": 600_000})
FILE_BYTES: Final = 1000
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
IDLE_TURNS: Final = 12  # an answer takes fewer turns of the loop

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
    b"/api/x/%2F",     b"/v1/seal", b"/v1/seal", b"/v1/seal", b"/v1/slots/7", b"/v1/slots/7", b"/v1/seals?after=-1",
    b"/v1/seals?after=1&after=2", b"/%ff", b"/%", b"http://[::1/", b"http://h:1/v1/slots/7",
    b"x",
]  # fmt: skip
HEADERS: Final = [
    b"Host: h", b"Host: h", b"Host: h", b"Host:", b"Content-Length: 5", b"Content-Length: 3000",
    b"Content-Length: 5, 5", b"Content-Length: x",
    b"Content-Length: " + b"9" * 30, b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue",
    b"Authorization: Basic YTpi", b"Authorization: Basic YTpi", b"Authorization: Basic =",
    b"Authorization: Bearer x", b"Range: bytes=1-2", b"Range: bytes=1-2", b"Range: bytes=1000-",
    b"Range: bytes=9999999-", b"Range: x",
    b"Range: bytes=-" + b"9" * 30, b'If-None-Match: "00000000", W/"1"', b"X: " + b"a" * 900, b": x", b"X\x00: y",
    b" folded", b"X: \xff",
]  # fmt: skip
BODIES: Final = [
    b"", b'{"n":1}', b"{", b"[]", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\n\r\n", b"fffffffff\r\n",
    b"100\r\n" + b"a" * 256 + b"\r\n1\r\na\r\n0\r\n\r\n", b"\x16\x03\x01", b"AMQP\x00\x00\x09\x01",
]  # fmt: skip


async def seals(call: Call) -> Response:
    """Read a parameter."""
    return json_answer(integer("after", call.query.get("after", "0")))


async def slot(call: Call) -> Response:
    """Read a word of the path, and the conditions for a file."""
    integer("seal", call.words["seal"])
    is_known(call.request.headers, '"00000000"')
    asked = asked_bytes(call.request.headers, FILE_BYTES, '"00000000"')
    assert asked is None or 0 <= asked[0] < asked[1] <= FILE_BYTES
    return json_answer(asked, 200 if asked is None else 206)


async def seal(call: Call) -> Response:
    """Read a field of the body."""
    return json_answer((await call.fields(("n",))).integer("n", 0))


USERS: Final = Users([User("a", "b", ("management",))])
BROKER: Final[Any] = SimpleNamespace(settings=lambda: SETTINGS, logins=Logins(USERS))
APP: Final = application(
    BROKER,
    [
        ApiRoute("GET", "/v1/seals", Needs.NOTHING, seals, ("after", "limit")),
        ApiRoute("GET", "/v1/slots/{seal}", Needs.NOTHING, slot),
        ApiRoute("POST", "/v1/seal", Needs.NOTHING, seal),
        ApiRoute("GET", "/api/x/{vhost}", Needs.MANAGEMENT, seals),
    ],
)
CONFIG: Final = Config(
    APP,
    loop="none",
    http=ClientProtocol,
    ws="none",
    lifespan="off",
    interface="asgi3",
    log_config=None,
    proxy_headers=False,
    workers=1,
    h11_max_incomplete_event_size=SETTINGS.http.header_max_bytes,
)
CONFIG.load()
LOOP: Final = asyncio.new_event_loop()


class Wire(asyncio.Transport):
    """The broker's end of a connection in memory. Invariant: nothing is sent after the end."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.reading = True
        self.ended = False
        self.lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return addresses."""
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: Any) -> None:
        """Take what is sent."""
        assert not self.ended
        self.sent += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take limits, which do not matter here."""

    def get_write_buffer_size(self) -> int:
        """Return that everything was sent."""
        return 0

    def can_write_eof(self) -> bool:
        """Return that the connection has no TLS."""
        return True

    def write_eof(self) -> None:
        """End the broker's side."""
        self.ended = True

    def close(self) -> None:
        """End the connection."""
        self.ended = self.lost = True

    def abort(self) -> None:
        """End the connection at once."""
        self.ended = self.lost = True

    def is_closing(self) -> bool:
        """Return whether the connection has ended."""
        return self.lost

    def pause_reading(self) -> None:
        """Deliver nothing more for now."""
        self.reading = False

    def resume_reading(self) -> None:
        """Deliver again."""
        self.reading = True


class EndlessPlaces:
    """A port that has a place for every client."""

    def __init__(self) -> None:
        self.clients: list[ClientProtocol] = []

    def enter(self, client: ClientProtocol, _descriptor: int) -> None:
        """Take a client."""
        self.clients.append(client)

    def admit(self, _client: ClientProtocol, _user: str) -> None:
        """Admit a request."""

    def release(self, _client: ClientProtocol) -> None:
        """Take note of an answer."""

    def leave(self, client: ClientProtocol) -> None:
        """Forget a client."""
        self.clients.remove(client)


def check(rng: Random) -> str:
    """Send a few mutated requests, whole and in pieces, and return the last outcome."""
    octets = b"".join(request(rng) for _ in range(rng.randint(1, 3)))
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        octets = spoiled(rng, octets)
    together = LOOP.run_until_complete(talk([octets]))
    cut = LOOP.run_until_complete(talk(list(pieces(rng, octets))))
    statuses, ended = together
    # Which fault of a broken head is found first depends on the pieces, and nothing else does.
    assert cut == together or (ended and cut[1] and cut[0][:-1] == statuses[:-1]), (cut, together)
    assert "500" not in statuses, statuses
    if not statuses:
        return "unfinished"
    return f"ended {statuses[-1]}" if ended else f"answered {statuses[-1]}"


async def talk(chunks: list[bytes]) -> tuple[list[str], bool]:
    """Return the status of each answer, and whether the broker ended the connection."""
    wire, state, places = Wire(), ServerState(), EndlessPlaces()
    protocol = ClientProtocol(CONFIG, state, 600.0, places)
    protocol.connection_made(wire)
    for chunk in chunks:
        await settled(state)
        assert wire.reading or wire.lost
        if not wire.lost:
            protocol.data_received(chunk)
    await settled(state)
    ended = wire.ended
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks, return_exceptions=True)
    assert places.clients == []
    return [found.decode() for found in STATUS.findall(bytes(wire.sent))], ended


async def settled(state: ServerState) -> None:
    """Let the application work until it waits for more, or has answered everything."""
    for _ in range(IDLE_TURNS):
        if not state.tasks:
            break
        await asyncio.sleep(0)


def request(rng: Random) -> bytes:
    """Return octets that resemble a request."""
    lines = [b"%b %b HTTP/%b" % (rng.choice(METHODS), rng.choice(TARGETS), rng.choice([b"1.1"] * 9 + [b"1.0", b"2.0"]))]
    lines += [b"Host: localhost"] * (rng.random() < 0.95)
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


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(main("http", check))
