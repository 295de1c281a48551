"""Answers without an end, such as live numbers: what ends them, and the rest of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.responses import Response

from broker.manage.answers import PieceResponse
from broker.manage.app import application
from broker.manage.call import ApiRoute, Call, Needs
from broker.server import BrokerServer
from tests.deadline import DEADLINE_S, wait_until_async
from tests.http_talk import GUEST, request, statuses, until_closed
from tests.in_process import running_broker


class Endless:
    """A route whose answer never ends by itself."""

    def __init__(self, piece: bytes = b"tick\n") -> None:
        self.piece = piece
        self.open = 0
        self.more = asyncio.Event()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield a piece, and another one whenever the test asks for it."""
        self.open += 1
        try:
            while True:
                yield self.piece
                await self.more.wait()
        finally:
            self.open -= 1

    async def respond(self, call: Call) -> Response:
        """Answer."""
        call.client.endless = True
        return PieceResponse(self.pieces())

    async def ended(self) -> bool:
        """Return whether no answer is being made."""
        return not self.open


@asynccontextmanager
async def broker_with(endless: Endless, folder: Path, **http: Any) -> AsyncIterator[BrokerServer]:
    """Provide a broker with this route alone."""
    async with running_broker(folder, http={"enabled": True, "port": 0, **http}) as broker:
        route = ApiRoute("GET", "/api/endless", Needs.MANAGEMENT, endless.respond)
        broker.manage._gates["http"].open(application(broker.entrance.managed, [route]))
        yield broker


def begin(port: int) -> socket.socket:
    """Return the connection of a client that has read the beginning of an answer."""
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(request("GET", "/api/endless", GUEST))
    found = b""
    while b"\r\n\r\n" not in found:
        found += client.recv(1000)
    assert statuses(found) == [200]
    return client


async def test_an_answer_ends_when_its_client_leaves(tmp_path: Path) -> None:
    """An answer ends when its client disconnects, even while it waits for an event that never happens."""
    endless = Endless()
    async with broker_with(endless, tmp_path / "data") as broker:
        client = await asyncio.to_thread(begin, broker.manage.port())
        assert endless.open == 1
        client.close()
        await wait_until_async(endless.ended, "the answer is no longer made")
        assert broker.manage.clients() == 0


async def test_a_stopping_broker_breaks_it_off(tmp_path: Path) -> None:
    """The stop does not wait for what has no end; other answers are finished."""
    endless = Endless()
    async with broker_with(endless, tmp_path / "data") as broker:
        client = await asyncio.to_thread(begin, broker.manage.port())
        broker.manage.refuse_new()
        await wait_until_async(endless.ended, "the answer is no longer made")
        assert b"0\r\n\r\n" not in await asyncio.to_thread(until_closed, client)
        client.close()


async def test_a_client_that_reads_nothing_ends_it(tmp_path: Path) -> None:
    """Each piece has the time limit, and what waits for the client is bounded."""
    endless = Endless(b"x" * (1 << 20))
    async with broker_with(endless, tmp_path / "data", timeout_ms=300) as broker:
        client = await asyncio.to_thread(begin, broker.manage.port())
        endless.more.set()
        await wait_until_async(endless.ended, "the answer is no longer made")
        client.close()
