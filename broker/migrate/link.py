"""One AMQP connection with one channel, for the source or the target of a migration."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from pamqp import commands

from broker.amqp.codec import Method, content_frames, decode_method, encode_method
from broker.amqp.errors import ProtocolError
from broker.amqp.framing import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, HEARTBEAT, FrameCutter, Octets
from broker.amqp.handshake import PROTOCOL_HEADER
from broker.migrate.faults import MethodRefused, PeerLost
from broker.migrate.methods import AnyOpen, AnyPublish
from broker.perf.peer import Address

__all__ = ["MigrationLink", "SourceMessage"]

CHANNEL: Final = 1
FRAME_MAX_BYTES: Final = 131_072
HEARTBEAT_S: Final = 30
OPEN_LIMIT_S: Final = 30.0
CLOSE_LIMIT_S: Final = 5.0
RECEIVED_MAX_BYTES: Final = 64 << 20  # of deliveries that wait; beyond it the socket is not read
TOGETHER_BYTES: Final = 64 << 10  # of publishes that are written at once
BODY_BYTES: Final = slice(4, 12)
CLOSED_BY_US: Final = 200
PROPERTIES: Final[dict[str, Any]] = {
    "product": "SlotMQ",
    "connection_name": "slotmq migrate",
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "publisher_confirms": True,
    },
}


class SourceMessage(NamedTuple):
    """One message of the source; `header` is the payload of its content header frame."""

    tag: int
    redelivered: bool
    exchange: str
    key: str
    header: bytes
    body: bytes


class MigrationLink(asyncio.Protocol):
    """The client's side of a connection that one task uses.

    Shapes: `deliveries` waits to be taken; `confirmed` is the number of publishes that the broker has confirmed, in
        order; `blocked` is the reason of connection.blocked, or empty; `product` is what the broker calls itself.
    """

    def __init__(self, name: str) -> None:
        """`name` is what error texts call the broker."""
        self.name = name
        self.product = ""
        self.deliveries: deque[SourceMessage] = deque()
        self.published = 0
        self.confirmed = 0
        self.blocked = ""
        self._cutter = FrameCutter(FRAME_MAX_BYTES)
        self._frame_max_bytes = FRAME_MAX_BYTES
        self._transport: asyncio.Transport | None = None
        self._out: list[Octets] = []
        self._out_bytes = 0
        self._answers: deque[Any] = deque()
        self._content: Any = None  # the method whose content arrives
        self._header = b""
        self._parts: list[Octets] = []
        self._missing_bytes = 0
        self._waiting_bytes = 0
        self._lost: Exception | None = None
        self._news = asyncio.Event()
        self._heard = True
        self._beats: asyncio.TimerHandle | None = None
        self._full = False

    # -- what the task calls ------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, address: Address, name: str) -> MigrationLink:
        """Connect, log in and open the channel. Raises: PeerLost, MethodRefused."""
        loop = asyncio.get_running_loop()
        link = cls(name)
        try:
            async with asyncio.timeout(OPEN_LIMIT_S):
                security = address.tls_context() if address.tls else None
                await loop.create_connection(lambda: link, address.host, address.port, ssl=security)
                await link._log_in(address)
        except TimeoutError:
            link.abort()
            raise PeerLost(f"{name}: no answer within {OPEN_LIMIT_S:g} s") from None
        except ssl.SSLError as error:
            raise PeerLost(f"{name}: no TLS with {address.host} port {address.port}: {error.reason}") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise PeerLost(f"{name}: cannot reach {address.host} port {address.port}: {reason}") from None
        except BaseException:
            link.abort()
            raise
        return link

    async def reopen(self) -> None:
        """Open the channel again after a method was refused. Raises: PeerLost, MethodRefused."""
        self._lost = None
        await self.call(commands.Channel.Open())

    async def call(self, method: Method, channel: int = CHANNEL) -> Any:
        """Send a method and return its answer. Raises: PeerLost, MethodRefused."""
        self.send(method, channel)
        return await self._answer()

    def send(self, method: Method, channel: int = CHANNEL) -> None:
        """Send a method, and everything before it."""
        self._out.append(encode_method(channel, method))
        self._flush()

    def publish(self, exchange: str, key: str, header: bytes, body: bytes) -> None:
        """Publish a mandatory message; it leaves together with others, at the latest when something is waited for."""
        self.published += 1
        self._out.append(encode_method(CHANNEL, AnyPublish(exchange=exchange, routing_key=key, mandatory=True)))
        self._out += content_frames(CHANNEL, header, body, self._frame_max_bytes)
        self._out_bytes += len(header) + len(body)
        if self._out_bytes > TOGETHER_BYTES:
            self._flush()

    def take(self) -> SourceMessage:
        """Take the first delivery that waits."""
        delivery = self.deliveries.popleft()
        self._waiting_bytes -= len(delivery.body)
        if self._transport is not None and self._waiting_bytes < RECEIVED_MAX_BYTES:
            self._transport.resume_reading()
        return delivery

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until received frames make a condition true. Raises: PeerLost, MethodRefused."""
        self._flush()
        while not met():
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()

    async def writable(self) -> None:
        """Wait until the broker reads again. Raises: PeerLost, MethodRefused."""
        if self._full or self._lost is not None:
            await self.until(lambda: not self._full and self._lost is None)

    async def close(self) -> None:
        """Close in order; a broker that does not answer is left."""
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self.call(commands.Connection.Close(CLOSED_BY_US, "done", 0, 0), 0)
        except (PeerLost, MethodRefused, TimeoutError):
            pass
        self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._beats is not None:
            self._beats.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    async def _answer(self) -> Any:
        await self.until(lambda: bool(self._answers))
        return self._answers.popleft()

    async def _log_in(self, address: Address) -> None:
        assert self._transport is not None
        self._transport.write(PROTOCOL_HEADER)
        start: commands.Connection.Start = await self._answer()
        told = start.server_properties or {}
        self.product = " ".join(str(told[name]) for name in ("product", "version") if name in told)
        response = f"\0{address.user}\0{address.password}"
        tune = await self.call(commands.Connection.StartOk(PROPERTIES, "PLAIN", response, "en_US"), 0)
        heartbeat_s = min(tune.heartbeat or HEARTBEAT_S, HEARTBEAT_S)
        self._frame_max_bytes = min(tune.frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
        self.send(commands.Connection.TuneOk(CHANNEL, self._frame_max_bytes, heartbeat_s), 0)
        self._beat(heartbeat_s / 2, silent=0)
        await self.call(AnyOpen(address.vhost), 0)
        await self.call(commands.Channel.Open())

    def _beat(self, every_s: float, silent: int) -> None:
        """Send a heartbeat, and end the connection when nothing was heard four times."""
        silent = 0 if self._heard else silent + 1
        self._heard = False
        if self._transport is None or self._transport.is_closing():
            return
        if silent > 4 and self._transport.is_reading():
            self._end(PeerLost(f"{self.name}: the broker has been silent for {silent * every_s:.0f} s"))
            self._transport.abort()
            return
        self._transport.write(HEARTBEAT)
        self._beats = asyncio.get_running_loop().call_later(every_s, self._beat, every_s, silent)

    # -- callbacks of the loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Handle whole frames."""
        self._heard = True
        self._cutter.feed(data)
        try:
            for kind, channel, payload, part in self._cutter.frames():
                self._frame(kind, channel, payload, part if isinstance(part, memoryview) else payload)
        except ProtocolError as error:
            self._end(PeerLost(f"{self.name}: a broken frame: {error}"))
            self.abort()
        if self._waiting_bytes >= RECEIVED_MAX_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._news.set()

    def pause_writing(self) -> None:
        """Note that the broker reads nothing at the moment."""
        self._full = True

    def resume_writing(self) -> None:
        """Note that the broker reads again."""
        self._full = False
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the task waits for."""
        reason = getattr(exc, "strerror", None) or str(exc or "the broker closed the socket")
        self._end(PeerLost(f"{self.name}: the connection is lost: {reason}"))

    # -- frames -------------------------------------------------------------------------------------------------------

    def _end(self, reason: Exception) -> None:
        if self._lost is None:
            self._lost = reason
        self._news.set()

    def _frame(self, kind: int, channel: int, payload: bytes, octets: Octets) -> None:
        if kind == FRAME_METHOD:
            self._method(channel, decode_method(payload))
        elif kind == FRAME_HEADER:
            self._header, self._parts = payload, []
            self._missing_bytes = int.from_bytes(payload[BODY_BYTES], "big")
            if not self._missing_bytes:
                self._complete()
        elif kind == FRAME_BODY:
            self._parts.append(octets)
            self._missing_bytes -= len(octets)
            if self._missing_bytes <= 0:
                self._complete()

    def _complete(self) -> None:
        method, self._content = self._content, None
        body = b"".join(self._parts)
        if isinstance(method, commands.Basic.Return):
            text = f"{method.reply_code} {method.reply_text}"
            self._end(MethodRefused(method.reply_code or 0, f"{self.name} returned a message: {text}"))
        elif isinstance(method, commands.Basic.GetOk):
            self._answers.append((method, body))
        elif method is not None:
            place = method.exchange or "", method.routing_key or ""
            self.deliveries.append(SourceMessage(method.delivery_tag, method.redelivered, *place, self._header, body))
            self._waiting_bytes += len(body)

    def _method(self, channel: int, method: Any) -> None:
        match method:
            case commands.Basic.Deliver() | commands.Basic.Return() | commands.Basic.GetOk():
                self._content = method
            case commands.Basic.Ack():
                self.confirmed = max(self.confirmed, method.delivery_tag)
            case commands.Basic.Nack():
                self._end(MethodRefused(0, f"{self.name} refused a message: the queue is full"))
            case commands.Connection.Close():
                self.send(commands.Connection.CloseOk(), channel)
                self._end(PeerLost(f"{self.name}: {method.reply_code} {method.reply_text}"))
            case commands.Channel.Close():
                self.send(commands.Channel.CloseOk(), channel)
                self._end(MethodRefused(method.reply_code or 0, f"{self.name}: {method.reply_text}"))
            case commands.Basic.Cancel():
                self._end(PeerLost(f"{self.name}: the queue was deleted or its node is gone"))
            case commands.Connection.Blocked():
                self.blocked = method.reason or "no reason given"
            case commands.Connection.Unblocked():
                self.blocked = ""
            case _:
                self._answers.append(method)
