"""One of thousands of connections without messages on one event loop: it follows scripts of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self

from broker.perf import wire
from broker.perf.faults import BrokenStream, Fault, Refusal, Stalled
from broker.perf.peer import CALL_LIMIT_S, Address, Script, next_frame
from broker.perf.scanner import reason

_BEAT: Final = wire.frame(wire.HEARTBEAT, 0, b"")
_NOTICES: Final = (wire.CONNECTION_BLOCKED, wire.CONNECTION_UNBLOCKED)  # these scripts publish nothing
_CLOSES: Final = (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE)


class Conversation(asyncio.Protocol):
    """One connection, which `ended` is told about when it is no longer open.

    Invariant: `fault` is the reason why the connection ended; None while it is open, and after connection.close-ok.
    """

    def __init__(self, ended: Callable[[Conversation], None]) -> None:
        self.fault: Fault | None = None
        self._ended = ended
        self._open = True
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._answer = (0, 0)
        self._waiting: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, address: Address, ended: Callable[[Conversation], None], heartbeat_s: float = 0) -> Self:
        """Connect, through TLS if the address says so, and send nothing of AMQP but heartbeats, twice per interval.

        Raises: OSError.
        """
        loop, tls = asyncio.get_running_loop(), address.tls_context() if address.tls else None
        async with asyncio.timeout(CALL_LIMIT_S):
            _, made = await loop.create_connection(
                lambda: cls(ended), address.host, address.port, ssl=tls, family=address.family
            )
        if heartbeat_s:
            loop.call_later(heartbeat_s / 2, made.beat, heartbeat_s / 2)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass the answer to the waiting script."""
        self._received += data
        while self._open and (found := next_frame(self._received)) is not None:
            kind, payload = found
            if kind == wire.METHOD:
                self._answered(payload)
            elif kind != wire.HEARTBEAT:
                self.end(BrokenStream(f"a frame of type {kind} where no message is awaited"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the script that the connection is gone."""
        why = f"the connection is gone: {getattr(exc, 'strerror', None) or exc}"
        self.end(Refusal(why if exc else "the broker closed the socket"))

    async def follow(self, script: Script) -> Any:
        """Send the requests of a script, each after the answer to the one before, and return the script's value.

        Raises: Refusal, BrokenStream, Stalled.
        """
        try:
            request, answer = next(script)
            while True:
                request, answer = script.send(await self._call(request, answer))
        except StopIteration as ended:
            return ended.value

    def end(self, fault: Fault | None = None) -> None:
        """Close the socket without a closing handshake, and raise the fault in the script that waits."""
        if not self._open:
            return
        self._open, self.fault = False, fault
        self._transport.abort()
        if self._waiting is not None and not self._waiting.done() and fault is not None:
            self._waiting.set_exception(fault)
        self._ended(self)

    def beat(self, every_s: float) -> None:
        """Send a heartbeat, now and as often as this, while the connection is open."""
        if self._open:
            self._transport.write(_BEAT)
            asyncio.get_running_loop().call_later(every_s, self.beat, every_s)

    async def _call(self, request: bytes, answer: tuple[int, int]) -> bytes:
        if not self._open:
            raise self.fault or Refusal("the connection is closed")
        self._answer, self._waiting = answer, asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                return await self._waiting
        except TimeoutError:
            fault = Stalled(f"no answer from the broker for {CALL_LIMIT_S:.0f} s")
            self.end(fault)
            raise fault from None
        finally:
            self._waiting = None

    def _answered(self, payload: bytes) -> None:
        name = wire.METHOD_HEAD.unpack_from(payload)
        if self._waiting is not None and name == self._answer and not self._waiting.done():
            self._waiting.set_result(payload)
            if name == wire.CONNECTION_CLOSE_OK:
                self.end()
        elif name in _CLOSES:
            self.end(Refusal(reason(payload)))
        elif name not in _NOTICES:
            self.end(Refusal(f"the broker sent method {name} unasked"))
