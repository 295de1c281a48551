"""One client's connection: reads a request, writes its answer, and repeats until either side ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from broker.event_log import get_logger
from broker.net.http.answer import Answer, refusal_answer
from broker.net.http.file_reads import PIECE_BYTES
from broker.net.http.machine import HttpLimits, HttpMachine
from broker.net.http.refusal import HttpRefused
from broker.net.tls import peer_of
from broker.store.damage import StoreFailed

if TYPE_CHECKING:
    from broker.core.auth.peer import Peer
    from broker.net.http.file_reads import FileReads
    from broker.net.http.request import HttpRequest

__all__ = ["READ_BYTES", "Client", "HttpConversation", "Responder"]

READ_BYTES: Final = 16 << 10
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request. Shapes: `gone` tells, in any thread, whether the connection has ended."""

    peer: Peer
    gone: Callable[[], bool]


Responder = Callable[["HttpRequest", Client], Awaitable[Answer]]
"""Answers a request; raises nothing but cancellation."""


class HttpConversation:
    """Talks to one client.

    Units: `timeout_s` is the limit for one whole request, counted from the previous answer, and for receiving a piece
    of an answer.
    Invariant: nothing is read while an answer is being sent, so requests sent ahead fill the client's own socket.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        respond: Responder,
        reads: FileReads,
        limits: HttpLimits,
        timeout_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._respond = respond
        self._reads = reads
        self._timeout_s = timeout_s
        self._machine = HttpMachine(limits)
        self._client = Client(peer_of(writer.transport), writer.transport.is_closing)
        self._waiting = True
        self._last = False
        writer.transport.set_write_buffer_limits(high=PIECE_BYTES)

    def end(self) -> bool:
        """Take no further request, and return whether none is being answered."""
        self._last = True
        return self._waiting

    async def run(self) -> None:
        """Serve until the connection ends, closed in order if the client is still there."""
        try:
            while await self._exchange():
                pass
            await self._finish()
        except OSError:  # gone, or too slow
            _log.debug("http.client_lost", conn=self._client.peer.name)
        except StoreFailed as failed:  # its answer has begun: it can only be broken off
            _log.warning("http.answer_broken_off", conn=self._client.peer.name, reason=str(failed))
        finally:
            self._writer.transport.abort()

    async def turn_away(self, refused: HttpRefused) -> None:
        """Answer without a request, and close."""
        try:
            await self._send(replace(refusal_answer(refused), close=True))
            await self._finish()
        except OSError:  # gone, or too slow
            pass
        finally:
            self._writer.transport.abort()

    async def _exchange(self) -> bool:
        """Serve one request; return False when there is no further one."""
        try:
            request = await self._request()
            if request is None:
                return False
            self._waiting = False
            answer = await self._respond(request, self._client)
            _log.debug("http.answered", conn=self._client.peer.name, method=request.method, status=answer.status)
        except HttpRefused as refused:  # of the request itself: it reached no responder
            self._waiting = False
            answer = refusal_answer(refused)
        if self._last:
            answer = replace(answer, close=True)
        try:
            await self._send(answer)
        finally:
            if answer.part is not None:
                answer.part.file.close()
        self._waiting = not self._last
        return not self._last and self._machine.next_cycle()

    async def _request(self) -> HttpRequest | None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._timeout_s):
                while (request := machine.next_request()) is None and not machine.ended:
                    if go_on := machine.go_on():
                        self._writer.write(go_on)
                    machine.receive(await self._reader.read(READ_BYTES))
        except TimeoutError:
            if not machine.begun:
                return None
            raise HttpRefused(408, f"a request takes at most {self._timeout_s:g} s", fatal=True) from None
        return request

    async def _send(self, answer: Answer) -> None:
        machine, write = self._machine, self._writer.write
        write(machine.head(answer, formatdate(usegmt=True)))
        if answer.body and machine.has_body:
            write(machine.piece(answer.body))
        if answer.part is not None and machine.has_body:
            async for piece in self._reads.pieces(answer.part):
                write(machine.piece(piece))
                await self._drain()
        write(machine.end())
        await self._drain()

    async def _drain(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._writer.drain()

    async def _finish(self) -> None:
        """End the output, and read on until the client has closed too.

        If a socket with unread input is closed, the kernel discards output that the client has not read yet.
        """
        writer = self._writer
        writer.transport.set_write_buffer_limits(high=0)
        await self._drain()
        async with asyncio.timeout(LINGER_S):
            if not writer.can_write_eof():  # TLS has its own close
                writer.close()
                await writer.wait_closed()
                return
            writer.write_eof()
            left_bytes = LINGER_BYTES
            while left_bytes > 0 and (octets := await self._reader.read(READ_BYTES)):
                left_bytes -= len(octets)
