"""The client's side of a connection, as far as a link between two brokers needs it: one channel, which publishes
messages to one name and consumes one queue without acknowledging.

    GREETING --start--> STARTED --tune--> TUNED --open-ok--> OPENED --channel open-ok--> READY <--> messages
    any state --connection.close, channel.close or a broken frame--> CLOSED

Pure: bytes in, bytes and messages out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final

from pamqp import commands
from pamqp.common import FieldTable

from broker.amqp.codec import Method, content_frames, decode_method, encode_method
from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, HEARTBEAT, FrameCutter, Octets
from broker.amqp.handshake import PROTOCOL_HEADER

__all__ = ["ClientConnection", "ClientState", "LinkRefused"]

CHANNEL: Final = 1
FRAME_MAX_BYTES: Final = 131_072
FIRST_FRAME_MAX_BYTES: Final = 64 << 10  # of a connection.start, before the size is agreed
HEADER: Final = struct.Struct(">HHQH")  # class, weight, body size, flags: no properties
BODY_BYTES: Final = struct.Struct(">Q")
BASIC: Final = 60
CLOSED_BY_US: Final = 200
PROPERTIES: Final[FieldTable] = {
    "product": "SlotMQ",
    "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True},
}


class LinkRefused(Exception):
    """The other broker ended the connection, or speaks no AMQP; the text says why."""


class ClientState(Enum):
    """Which frame comes next."""

    GREETING = auto()
    STARTED = auto()
    TUNED = auto()
    OPENED = auto()
    READY = auto()
    CLOSED = auto()


class ClientConnection:
    """Opens a connection and a channel, consumes a queue, and then sends and receives messages.

    Shapes: `received` takes the routing key and the body of each message. Output is taken with `take_output`.
    Units: `heartbeat_s` is what we ask for at most; 0 turns heartbeats off.
    Raises: LinkRefused from `feed`.
    """

    def __init__(
        self,
        user: str,
        password: str,
        vhost: str,
        queue: str,
        received: Callable[[str, bytes], None],
        *,
        arguments: Mapping[str, Any],
        heartbeat_s: int,
        max_message_bytes: int,
    ) -> None:
        self.state = ClientState.GREETING
        self.heartbeat_s = heartbeat_s
        self._response = f"\0{user}\0{password}"
        self._vhost = vhost
        self._queue = queue
        self._received = received
        self._arguments = dict(arguments)
        self._max_message_bytes = max_message_bytes
        self._frame_max_bytes = FIRST_FRAME_MAX_BYTES
        self._cutter = FrameCutter(FIRST_FRAME_MAX_BYTES)
        self._key = ""
        self._missing_bytes = -1  # of the body that is arriving; -1 while none is awaited
        self._parts: list[Octets] = []
        self._awaits_header = False
        self._out: list[Octets] = [PROTOCOL_HEADER]

    def feed(self, data: bytes) -> None:
        """Process received bytes."""
        self._cutter.feed(data)
        try:
            for kind, channel, payload, part in self._cutter.frames():
                self._frame(kind, channel, payload, part if isinstance(part, memoryview) else payload)
        except ConnectionFault as fault:
            self.state = ClientState.CLOSED
            raise LinkRefused(f"a broken frame: {fault.reply_text}") from None

    def take_output(self) -> list[Octets]:
        """Return what is to be written, in pieces."""
        out, self._out = self._out, []
        return out

    def publish(self, routing_key: str, body: bytes) -> None:
        """Send a message through the default exchange."""
        method = commands.Basic.Publish(exchange="", routing_key=routing_key)
        self._out.append(encode_method(CHANNEL, method))
        self._out += content_frames(CHANNEL, HEADER.pack(BASIC, 0, len(body), 0), body, self._frame_max_bytes)

    def beat(self) -> None:
        """Send a heartbeat."""
        self._out.append(HEARTBEAT)

    def close(self, text: str) -> None:
        """Say goodbye; nothing that arrives later has a meaning."""
        if self.state not in (ClientState.GREETING, ClientState.CLOSED):
            self._send(0, commands.Connection.Close(CLOSED_BY_US, text, 0, 0))
        self.state = ClientState.CLOSED

    def _send(self, channel: int, method: Method) -> None:
        self._out.append(encode_method(channel, method))

    def _frame(self, kind: int, channel: int, payload: bytes, octets: Octets) -> None:
        if self.state is ClientState.CLOSED or kind == FRAME_HEARTBEAT:
            return
        if kind == FRAME_METHOD:
            self._method(decode_method(payload))
        elif channel != CHANNEL or not self._takes_content(kind, octets):
            raise ConnectionFault(505, f"an unexpected frame of type {kind}")

    def _takes_content(self, kind: int, payload: Octets) -> bool:
        """Take a content header or a part of a body, and return whether one was awaited."""
        if kind == FRAME_HEADER and self._awaits_header and len(payload) >= HEADER.size:
            self._awaits_header = False
            (self._missing_bytes,) = BODY_BYTES.unpack_from(payload, 4)
            if self._missing_bytes > self._max_message_bytes:
                raise ConnectionFault(501, f"a message of {self._missing_bytes} bytes")
        elif kind == FRAME_BODY and len(payload) <= self._missing_bytes:
            self._missing_bytes -= len(payload)
            self._parts.append(payload)
        else:
            return False
        if self._missing_bytes == 0:
            self._missing_bytes = -1
            parts, self._parts = self._parts, []
            self._received(self._key, b"".join(parts))
        return True

    def _method(self, method: Method) -> None:
        match method:
            case commands.Basic.Deliver() if self.state is ClientState.READY and not self._busy:
                self._awaits_header = True
                self._key = method.routing_key or ""
            case commands.Connection.Close() | commands.Channel.Close():
                self.state = ClientState.CLOSED
                if isinstance(method, commands.Connection.Close):
                    self._send(0, commands.Connection.CloseOk())
                raise LinkRefused(str(method.reply_text))
            case commands.Basic.Cancel():
                self.state = ClientState.CLOSED
                raise LinkRefused("the other broker ended the link")
            case commands.Connection.Blocked() | commands.Connection.Unblocked():
                """The socket fills up while the other broker reads nothing."""
            case _:
                self._advance(method)

    @property
    def _busy(self) -> bool:
        return self._awaits_header or self._missing_bytes >= 0

    def _advance(self, method: Method) -> None:
        """Take the next step of the opening."""
        match self.state, method:
            case ClientState.GREETING, commands.Connection.Start():
                if "PLAIN" not in str(method.mechanisms).split():
                    raise LinkRefused(f"the mechanism PLAIN is not offered, only {method.mechanisms}")
                start_ok = commands.Connection.StartOk(dict(PROPERTIES), "PLAIN", self._response, "en_US")
                self._send(0, start_ok)
                self.state = ClientState.STARTED
            case ClientState.STARTED, commands.Connection.Tune():
                self._agree(method)
                self._send(0, commands.Connection.Open(self._vhost))
                self.state = ClientState.TUNED
            case ClientState.TUNED, commands.Connection.OpenOk():
                self._send(CHANNEL, commands.Channel.Open())
                self.state = ClientState.OPENED
            case ClientState.OPENED, commands.Channel.OpenOk():
                consume = commands.Basic.Consume(queue=self._queue, no_ack=True, arguments=self._arguments)
                self._send(CHANNEL, consume)
                self.state = ClientState.READY
            case ClientState.READY, commands.Basic.ConsumeOk():
                """The first message says how to answer."""
            case _:
                raise LinkRefused(f"{method.name} is not expected now")

    def _agree(self, tune: commands.Connection.Tune) -> None:
        """Take the limits of the other broker where they are lower than ours."""
        frame_max = min(tune.frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
        if self.heartbeat_s and tune.heartbeat:
            self.heartbeat_s = min(self.heartbeat_s, tune.heartbeat)
        self._frame_max_bytes = frame_max
        self._cutter.take_limit(frame_max)
        self._send(0, commands.Connection.TuneOk(CHANNEL, frame_max, self.heartbeat_s))
