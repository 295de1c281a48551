"""An HTTP client for tests: http.client where that suffices, otherwise a plain socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.server import BrokerServer
from tests.deadline import DEADLINE_S, wait_until_async

GUEST = ("guest", "guest")


@dataclass(frozen=True)
class Response:
    """An HTTP response. Shapes: header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the JSON body."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str, str]:
        """Return the status, error and reason of an error response."""
        assert set(self.json) == {"error", "reason"}
        return self.status, self.json["error"], self.json["reason"]


def basic(user: tuple[str, str] | None) -> dict[str, str]:
    """Return the Authorization header of a user, none without a user."""
    return {} if user is None else {"Authorization": "Basic " + b64encode(":".join(user).encode()).decode()}


class Web:
    """A persistent connection, with or without a user."""

    def __init__(self, port: int, user: tuple[str, str] | None = GUEST, context: ssl.SSLContext | None = None) -> None:
        self.user = user
        self.connection: http.client.HTTPConnection
        if context is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        else:
            self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """Send a request; a body that is neither bytes nor an iterator of bytes is sent as JSON."""
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, sent, {**basic(self.user), **named})
        answer = self.connection.getresponse()
        said = Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        if answer.will_close:
            self.connection.close()
        return said

    def get(self, path: str, **headers: str) -> Response:
        """Send a GET request."""
        return self.ask("GET", path, **headers)

    async def later(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """Send a request in another thread, because the broker runs in this one."""
        return await asyncio.to_thread(self.ask, method, path, body, **headers)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


async def ask(broker: BrokerServer, method: str, path: str, body: Any = None, **options: Any) -> Response:
    """Send one request on a new connection, as `user`."""
    web = Web(broker.manage.port(), options.pop("user", GUEST))
    try:
        return await web.later(method, path, body, **options)
    finally:
        web.close()


def raw(port: int, *pieces: bytes) -> bytes:
    """Send raw bytes and return everything received until the broker closes."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        for piece in pieces:
            client.sendall(piece)
        return until_closed(client)


def until_closed(client: socket.socket) -> bytes:
    """Return everything received until the peer closes."""
    found = b""
    try:
        while octets := client.recv(1 << 16):
            found += octets
    except ConnectionResetError:
        pass
    return found


def statuses(answers: bytes) -> list[int]:
    """Return the status of each response in the received bytes."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def request(method: str, path: str, user: tuple[str, str] | None = GUEST, **headers: str) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**basic(user), **headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def await_no_clients(broker: BrokerServer) -> None:
    """Wait until the broker has no HTTP connections."""
    await wait_until_async(lambda: not broker.manage.clients(), "the broker has no HTTP connections")
