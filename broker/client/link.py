"""A client's connection on asyncio: over TCP or TLS, or within the process over a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from pamqp import commands

from broker.amqp.client import ClientConnection, ClientState, Received
from broker.amqp.codec import Method
from broker.client.address import AmqpAddress

CLOSE_LIMIT_S: Final = 5.0
LINGER_S: Final = 2.0  # for the broker to read the remaining output of a connection that has ended
HIGH_WATER_BYTES: Final = 256 << 10


class CallRefused(Exception):
    """The broker refused a method and closed its channel or the connection; code 0 means that it was not processed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectionLost(CallRefused):
    """The connection has ended, with the code of connection.close if there was one."""


class ClientEvents:
    """The callbacks of a connection to its owner; by default they do nothing.

    Shapes: `peer` is the broker's name in error texts, and `cancelled` is the error text after a basic.cancel.
    """

    peer = "the broker"
    cancelled = "its queue was deleted"

    def delivered(self, message: Received) -> None:
        """Handle a delivered message."""

    def returned(self, message: Received) -> None:
        """Handle a returned mandatory publish; its confirm follows."""

    def settled(self, tag: int, *, multiple: bool, accepted: bool) -> None:
        """Handle a confirm of a publish."""

    def read(self) -> None:
        """React to received input, after all of its methods were handled."""

    def writable(self, *, is_writable: bool) -> None:
        """Stop publishing while the broker does not read, and resume when it reads again."""

    def ended(self, error: CallRefused) -> None:
        """React to the end of the connection."""


class ClientLink(asyncio.Protocol):
    """An asyncio protocol for the socket of a client's connection. Calls on a channel are answered in order.

    Shapes: `ended` resolves to the reason when the connection ends, and `refused` is then the error; `closed` is set
        when the socket is closed.
    """

    def __init__(self, client: ClientConnection, events: ClientEvents) -> None:
        self.client = client
        self.refused = CallRefused(0, "the connection is open")
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self._events = events
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(_seen)
        self._calls: dict[int, deque[asyncio.Future[Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    # -- calls of the owner -------------------------------------------------------------------------------------------

    async def dial(self, address: AmqpAddress) -> None:
        """Connect to a broker. Raises: OSError."""
        loop = asyncio.get_running_loop()
        context = await asyncio.to_thread(address.context) if address.tls else None
        await loop.create_connection(lambda: self, address.host, address.port, ssl=context)

    async def dial_within(self, attach: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Connect within the process over a pair of sockets; `attach` serves the other socket. Raises: OSError."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            theirs.setblocking(False)
            await attach(theirs)
            await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise

    async def open(self) -> None:
        """Wait until the channels are open. Raises: CallRefused."""
        await asyncio.shield(self._opened)

    def call(self, channel: int, method: Method) -> asyncio.Future[Any]:
        """Send a method, and return a future of its answer, which is a Received if it has content.

        Raises: CallRefused, from the future.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.ended.done():
            answer.set_exception(self.refused)
        else:
            self._calls.setdefault(channel, deque()).append(answer)
            self.cast(channel, method)
        return answer

    def cast(self, channel: int, method: Method) -> None:
        """Send a method that has no answer."""
        self.client.send(channel, method)
        self.flush()

    def flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        out = self.client.take_output()
        if out:
            transport.writelines(out)
            # Setting the limit makes the loop check it, which some releases of asyncio forget (gh-127655).
            transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    async def close(self, reason: str) -> None:
        """Close cleanly: the broker answers once it has handled everything that was published.

        If it does not answer within `CLOSE_LIMIT_S`, the socket is closed without an answer.
        """
        if not self.ended.done() and self._transport is not None:
            self.client.close(reason)
            self.flush()
            if self.client.state is ClientState.CLOSING:
                await asyncio.wait([self.ended], timeout=CLOSE_LIMIT_S)
        self.abort()

    def fail(self, error: CallRefused, *, notify: bool = False) -> None:
        """End the connection with an error; with `notify`, send connection.close first."""
        if notify:
            self.client.close(str(error))
            self.flush()
        self._end(error)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- callbacks of the loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.flush()

    def data_received(self, data: bytes) -> None:
        client = self.client
        for received in client.feed(data):
            self._handle(received)
        self.flush()
        if client.failure:
            self._end(ConnectionLost(0, client.failure))
        elif client.state is ClientState.OPEN and not self._opened.done():
            self._opened.set_result(None)
            if client.heartbeat_s:
                self.beat()
        self._events.read()

    def pause_writing(self) -> None:
        self._events.writable(is_writable=False)

    def resume_writing(self) -> None:
        self._events.writable(is_writable=True)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = getattr(exc, "strerror", None) or str(exc or f"{self._events.peer} closed the connection")
        self._end(ConnectionLost(0, reason))
        if self._timer is not None:
            self._timer.cancel()
        self.closed.set()

    def beat(self) -> None:
        """Send a heartbeat, and end a connection that was silent for over two intervals, unless reading is paused."""
        client, transport = self.client, self._transport
        if self.ended.done() or transport is None:
            return
        if not client.beat() and transport.is_reading():
            self._end(ConnectionLost(0, f"no heartbeat for {2 * client.heartbeat_s} s"))
            return
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(client.heartbeat_s / 2, self.beat)

    # -- received methods ---------------------------------------------------------------------------------------------

    def _handle(self, received: Received) -> None:
        channel, method = received.channel, received.method
        match method:
            case commands.Basic.Deliver():
                self._events.delivered(received)
            case commands.Basic.Ack() | commands.Basic.Nack():
                accepted = isinstance(method, commands.Basic.Ack)
                self._events.settled(method.delivery_tag, multiple=method.multiple, accepted=accepted)
            case commands.Basic.Return():
                self._events.returned(received)
            case commands.Basic.GetOk():
                self._answer(channel, received)
            case commands.Channel.Close():
                self._refuse(channel, CallRefused(method.reply_code or 0, method.reply_text))
            case commands.Connection.Close():
                self.flush()
                self._end(ConnectionLost(method.reply_code or 0, method.reply_text))
            case commands.Connection.CloseOk():
                self._end(ConnectionLost(0, f"{self._events.peer} closed the connection"))
            case commands.Basic.Cancel():
                self._end(ConnectionLost(0, self._events.cancelled))
            case _:
                self._answer(channel, method)

    def _answer(self, channel: int, answer: Any) -> None:
        waiting = self._calls.get(channel)
        if waiting:
            call = waiting.popleft()
            if not call.done():
                call.set_result(answer)

    def _refuse(self, channel: int, error: CallRefused) -> None:
        """End the calls on a closed channel: the first was refused, the others were not processed (code 0).

        If there is no call, a publish was refused, and the connection ends.
        """
        waiting = self._calls.pop(channel, None)
        if not waiting:
            self.flush()
            self._end(error)
            return
        _fail(waiting.popleft(), error)
        for other in waiting:
            _fail(other, CallRefused(0, "the channel was closed"))

    def _end(self, error: CallRefused) -> None:
        """End the connection; output that the broker does not read in time is dropped."""
        if self.ended.done():
            return
        self.refused = error
        self.ended.set_result(str(error))
        for waiting in [[self._opened], *self._calls.values()]:
            for call in waiting:
                _fail(call, error)
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.abort)
            self._transport.close()
        self._events.ended(error)


def _fail(call: asyncio.Future[Any], error: CallRefused) -> None:
    if not call.done():
        call.set_exception(error)
        call.add_done_callback(_seen)


def _seen(call: asyncio.Future[Any]) -> None:
    """Retrieve an error that is no longer awaited, so that asyncio does not report it."""
    if not call.cancelled():
        call.exception()
