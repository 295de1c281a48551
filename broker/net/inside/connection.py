"""A connection from within the process: a ØMQ bridge or an HTTP request as an AMQP client of its own broker.

So rights, limits, alarms and back-pressure hold for it as for any client, and `slotmq list connections` shows it. Only
the login is special: the broker knows already as which user it acts (EXTERNAL, see `Peer.inside`).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, Final, NamedTuple, cast

from pamqp import commands

from broker.amqp.codec import Method, content_frames, decode_method, encode_method
from broker.amqp.framing import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameCutter, Octets
from broker.amqp.handshake import PROTOCOL_HEADER
from broker.core.auth.peer import Peer
from broker.net.inside.methods import OpenAny
from broker.net.transport import write_pieces

__all__ = ["Attach", "CallRefused", "Got", "InsideConnection", "InsideEvents", "dial"]

Attach = Callable[[socket.socket, Peer], Awaitable[None]]
"""Serves one end of a pair of sockets, as the listener does."""

FRAME_MAX_BYTES: Final = 131_072
BODY_BYTES: Final = Struct(">Q")
BODY_BYTES_AT: Final = 4
CLOSED_BY_US: Final = 200
CLOSE_LIMIT_S: Final = 5.0
HIGH_WATER_BYTES: Final = 256 << 10
CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class CallRefused(Exception):
    """The broker refused a method and closed its channel (code 404, 403, 406), or ended the connection (others)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Got(NamedTuple):
    """The answer to a basic.get that found a message."""

    method: commands.Basic.GetOk
    header: bytes
    body: bytes


class InsideEvents:
    """What a connection tells its owner; each does nothing by default."""

    def delivered(self, tag: int, key: str, header: bytes, body: bytes) -> None:
        """Take a message."""

    def returned(self) -> None:
        """Take note that a mandatory publish found no queue; its confirm follows."""

    def read(self) -> None:
        """Take note that all that was received is handled."""

    def settled(self, tag: int, *, multiple: bool, accepted: bool) -> None:
        """Take a confirm of a publish."""

    def writable(self, *, is_writable: bool) -> None:
        """Stop or resume publishing: the broker reads no more at the moment, or again."""


class InsideConnection(asyncio.Protocol):
    """The client's side: calls are answered in order on each channel; deliveries and confirms go to the owner.

    Shapes: `ended` becomes the reason for which the connection ended, and `refused` is the error then.
    """

    def __init__(self, name: str, events: InsideEvents) -> None:
        self._name = name
        self._events = events
        self._cutter = FrameCutter(FRAME_MAX_BYTES)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, deque[asyncio.Future[Any]]] = {}
        self._announced: Any = None  # the method whose content follows
        self._header = b""
        self._parts: list[Octets] = []
        self._missing_bytes = 0
        self._channel = 0  # of that method
        self.refused = CallRefused(0, "the connection is open")
        self._out: list[Octets] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # -- what the owner calls -----------------------------------------------------------------------------------------

    async def open(self, vhost: str, channels: int) -> None:
        """Log in, open a vhost and channels, numbered from 1. Raises: CallRefused."""
        self._out.append(PROTOCOL_HEADER)
        self.flush()
        await self._next(0)
        properties: dict[str, Any] = {
            "product": "SlotMQ",
            "connection_name": self._name,
            "capabilities": CAPABILITIES,
        }
        await self.call(0, commands.Connection.StartOk(properties, "EXTERNAL", "\0", "en_US"))
        self._send(0, commands.Connection.TuneOk(channels, FRAME_MAX_BYTES, 0))
        await self.call(0, OpenAny(vhost))
        for channel in range(1, channels + 1):
            await self.call(channel, commands.Channel.Open())

    def call(self, channel: int, method: Method) -> asyncio.Future[Any]:
        """Send a method; the future becomes its answer. Raises: CallRefused, from the future."""
        if not self.ended.done():
            self._send(channel, method)
            self.flush()
        return self._next(channel)

    def publish(self, channel: int, method: Method, header: bytes, body: bytes) -> None:
        """Publish a message, which leaves with the next `flush`."""
        self._send(channel, method)
        self._out += content_frames(channel, header, body, FRAME_MAX_BYTES)

    def cast(self, channel: int, method: Method) -> None:
        """Send a method that has no answer."""
        self._send(channel, method)
        self.flush()

    def acknowledge(self, channel: int, tag: int) -> None:
        """Acknowledge all deliveries up to a tag."""
        self.cast(channel, commands.Basic.Ack(tag, True))

    def flush(self) -> None:
        """Write what is to be sent."""
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            write_pieces(self._transport, out, HIGH_WATER_BYTES)

    async def close(self, reason: str) -> None:
        """Close in order: all that was published has been handled when this returns.

        A broker that reads nothing does not answer, and the connection is dropped after `CLOSE_LIMIT_S`.
        """
        if self.ended.done() or self._transport is None:
            return
        answered = self.call(0, commands.Connection.Close(CLOSED_BY_US, reason, 0, 0))
        answered.add_done_callback(_seen)
        either: list[asyncio.Future[Any]] = [answered, self.ended]
        await asyncio.wait(either, timeout=CLOSE_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        self._transport.abort()

    # -- callbacks of the loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Handle whole frames."""
        self._cutter.feed(data)
        for kind, channel, payload, part in self._cutter.frames():
            if kind == FRAME_METHOD:
                self._method(channel, payload)
            elif kind == FRAME_HEADER:
                self._header = payload
                (self._missing_bytes,) = BODY_BYTES.unpack_from(payload, BODY_BYTES_AT)
                if not self._missing_bytes:
                    self._complete()
            elif kind == FRAME_BODY:
                octets = part if isinstance(part, memoryview) else payload
                self._parts.append(octets)
                self._missing_bytes -= len(octets)
                if not self._missing_bytes:
                    self._complete()
        self._events.read()

    def pause_writing(self) -> None:
        """Tell the owner to stop publishing."""
        self._events.writable(is_writable=False)

    def resume_writing(self) -> None:
        """Tell the owner to publish again."""
        self._events.writable(is_writable=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call."""
        self._end(CallRefused(0, str(exc) if exc else "the broker closed the connection"))

    # -- frames -------------------------------------------------------------------------------------------------------

    def _send(self, channel: int, method: Method) -> None:
        self._out.append(encode_method(channel, method))

    def _next(self, channel: int) -> asyncio.Future[Any]:
        """Return what becomes the next answer on a channel."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.ended.done():
            answer.set_exception(self.refused)
        else:
            self._calls.setdefault(channel, deque()).append(answer)
        return answer

    def _complete(self) -> None:
        parts, self._parts = self._parts, []
        method, self._announced = self._announced, None
        body = b"".join(parts)  # a single bytes object is not copied
        if isinstance(method, commands.Basic.GetOk):
            self._answer(self._channel, Got(method, self._header, body))
        elif isinstance(method, commands.Basic.Return):
            self._events.returned()
        else:
            self._events.delivered(method.delivery_tag, method.routing_key, self._header, body)

    def _method(self, channel: int, payload: bytes) -> None:
        method: Any = decode_method(payload)
        match method:
            case commands.Basic.Deliver() | commands.Basic.GetOk() | commands.Basic.Return():
                self._announced, self._channel = method, channel
            case commands.Basic.Ack():
                self._events.settled(method.delivery_tag, multiple=method.multiple, accepted=True)
            case commands.Basic.Nack():
                self._events.settled(method.delivery_tag, multiple=method.multiple, accepted=False)
            case commands.Connection.Close():
                self._send(0, commands.Connection.CloseOk())
                self.flush()
                self._end(CallRefused(method.reply_code or 0, method.reply_text))
            case commands.Channel.Close():
                self._send(channel, commands.Channel.CloseOk())
                self.flush()
                self._refuse(channel, CallRefused(method.reply_code or 0, method.reply_text))
            case commands.Basic.Cancel():
                self._end(CallRefused(0, "its queue was deleted"))
            case commands.Connection.Blocked() | commands.Connection.Unblocked():
                """The socket fills up while the broker reads nothing."""
            case _:
                self._answer(channel, method)

    def _answer(self, channel: int, answer: Any) -> None:
        waiting = self._calls.get(channel)
        if waiting:
            _resolve(waiting.popleft(), answer)

    def _refuse(self, channel: int, error: CallRefused) -> None:
        """End the calls on a channel: the first was refused, the others were not looked at (code 0).

        Without a call a publish was refused, and the connection ends.
        """
        waiting = self._calls.pop(channel, None)
        if not waiting:
            self._end(error)
            return
        _fail(waiting.popleft(), error)
        for other in waiting:
            _fail(other, CallRefused(0, "the channel was closed"))

    def _end(self, error: CallRefused) -> None:
        if not self.ended.done():
            self.refused = error
            self.ended.set_result(str(error))
        for waiting in self._calls.values():
            for call in waiting:
                _fail(call, error)
        self._calls.clear()
        if self._transport is not None:
            self._transport.close()


async def dial(attach: Attach, connection: InsideConnection, peer: Peer) -> None:
    """Connect a client within the process. Raises: OSError."""
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        theirs.setblocking(False)
        await attach(theirs, peer)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
    except BaseException:
        ours.close()
        theirs.close()
        raise


def _resolve(call: asyncio.Future[Any], answer: Any) -> None:
    if not call.done():
        call.set_result(answer)


def _fail(call: asyncio.Future[Any], error: CallRefused) -> None:
    if not call.done():
        call.set_exception(error)
        call.add_done_callback(_seen)


def _seen(call: asyncio.Future[Any]) -> None:
    """Look at an error that nobody awaits any more, so that asyncio does not report it."""
    if not call.cancelled():
        call.exception()
