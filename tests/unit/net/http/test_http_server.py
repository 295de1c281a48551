"""The HTTP listener with a responder that the test controls: disconnecting clients, and stopping the broker."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from broker.net.address import bind
from broker.net.http.answer import Answer
from broker.net.http.conversation import Client
from broker.net.http.file_reads import FileReads
from broker.net.http.request import HttpRequest
from broker.net.http.server import HttpServer
from broker.settings import Settings
from broker.store.files import Files
from tests.deadline import wait_until_async

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Held:
    """A responder that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def __call__(self, _request: HttpRequest, _client: Client) -> Answer:
        """Wait, then answer."""
        self.asked += 1
        await self.go.wait()
        return Answer(body=b"done")

    async def was_asked(self) -> bool:
        """Whether a request has arrived."""
        return self.asked > 0


@pytest.fixture
async def held() -> Held:
    """Provide the responder."""
    return Held()


@pytest.fixture
async def server(held: Held) -> AsyncIterator[HttpServer]:
    """Provide a listener on a free port without client timeouts."""
    settings = Settings(http={"enabled": True, "port": 0, "timeout_ms": 600_000})
    made = HttpServer(settings, held, FileReads(Files()), None)
    await made.start(bind("127.0.0.1", 0))
    yield made
    made.refuse_new()
    await made.close(0)


async def connected(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a client that has sent a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(GET)
    return reader, writer


async def test_a_client_that_resets_its_connection_ends_what_is_done_for_it(held: Held, server: HttpServer) -> None:
    """A reset cancels the request's work, whether it waits for a hash or for sealing a slot."""
    _, writer = await connected(server)
    await wait_until_async(held.was_asked, "the request has come")
    # A socket with a linger time of zero sends a reset when closed.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

    async def forgotten() -> bool:
        return not server._talks

    await wait_until_async(forgotten, "nothing is done for it any more")


async def test_an_answer_that_is_under_way_at_the_stop_is_the_last(held: Held, server: HttpServer) -> None:
    """A pending response is sent at the stop with a close header, and a later request is not read."""
    reader, writer = await connected(server)
    writer.write(GET)
    await wait_until_async(held.was_asked, "the request has come")
    server.refuse_new()
    closing = asyncio.ensure_future(server.close(30))
    held.go.set()
    said = await reader.read()
    assert said.startswith(b"HTTP/1.1 200 ") and b"\r\nConnection: close\r\n" in said and said.endswith(b"\r\n\r\ndone")
    assert said.count(b"HTTP/1.1") == 1 and held.asked == 1
    writer.close()
    await closing


async def test_an_answer_that_takes_too_long_at_the_stop_is_broken_off(held: Held, server: HttpServer) -> None:
    """The stop waits for a pending response no longer than for other clients."""
    reader, writer = await connected(server)
    await wait_until_async(held.was_asked, "the request has come")
    server.refuse_new()
    await server.close(0.05)
    assert await reader.read() == b""
    assert server._talks == {}
    writer.close()
