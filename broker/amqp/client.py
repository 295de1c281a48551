"""The client's side of a connection without I/O: bytes in, methods with their contents out, and the reverse.

    GREETING --start--> STARTED --tune--> TUNED --open-ok--> OPENING --last channel.open-ok--> OPEN --close()--> CLOSING
    any state --connection.close, close-ok or a failure--> CLOSED

It has no socket, task or clock. The caller writes the result of take_output(), and handles the result of feed().
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from pamqp import commands

from broker.amqp.codec import Method, content_frames, decode_method, encode_method
from broker.amqp.errors import ConnectionFault, ProtocolError
from broker.amqp.framing import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT,
    NO_FRAME,
    FrameCutter,
    Octets,
)
from broker.amqp.handshake import PROTOCOL_HEADER
from broker.amqp.lenient_methods import OpenAny

FRAME_MAX_BYTES: Final = 131_072
HEADER_MIN_BYTES: Final = 14  # class, weight, body size and flags
BODY_BYTES: Final = struct.Struct(">Q")
BODY_BYTES_AT: Final = 4
REPLY_SUCCESS: Final = 200
SILENT_BEATS_MAX: Final = 4
DROPPED_BIT: Final = 2  # in the bits of basic.ack: the broker dropped the publishes as duplicates
CAPABILITIES: Final[Mapping[str, bool]] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
CONTENT_METHODS: Final = frozenset({commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return})
CLOSES: Final = frozenset({commands.Channel.Close, commands.Connection.Close})


class ClientState(Enum):
    """The state of a connection, which determines the allowed frames."""

    GREETING = auto()
    STARTED = auto()
    TUNED = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Received(NamedTuple):
    """A method from the broker.

    Shapes: `header` is the payload of the content header frame, or empty if there is no content; `dropped` marks an ack
        of duplicates that the broker dropped (capability slotmq.dropped_publishes).
    """

    channel: int
    method: Any
    header: bytes = b""
    body: bytes = b""
    dropped: bool = False


class ArrivingContent:
    """The content of a method whose frames are still arriving."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.header = b""
        self.missing_bytes = 0
        self.parts: list[Octets] = []

    def add_header(self, octets: Octets) -> None:
        """Set the content header, which contains the size of the body."""
        self.header = bytes(octets)
        (self.missing_bytes,) = BODY_BYTES.unpack_from(octets, BODY_BYTES_AT)

    def add_body(self, octets: Octets) -> None:
        self.parts.append(octets)
        self.missing_bytes -= len(octets)


class ClientConnection:
    """A client connection, which logs in, opens a vhost and channels, and then sends and receives.

    Shapes: `login` is a user and a password, or None for the mechanism EXTERNAL; channels are numbered from 1;
        `blocked` is the reason in connection.blocked, or empty if publishers are not blocked; `failure` says why this
        side gave up the connection, or is empty.
    Units: `heartbeat_s` is the requested interval, later the negotiated one; 0 turns heartbeats off. `silent_beats`
        counts consecutive calls of beat() without input between them. `out_bytes` counts the bytes of publishes since
        the last take_output().
    Invariant: feed() raises no protocol error. The broker's close methods are answered.
    """

    def __init__(
        self,
        vhost: str,
        login: tuple[str, str] | None,
        *,
        properties: Mapping[str, Any],
        channels: int = 1,
        heartbeat_s: int = 0,
        max_message_bytes: int | None = None,
    ) -> None:
        self.state = ClientState.GREETING
        self.heartbeat_s = heartbeat_s
        self.frame_max_bytes = FRAME_MAX_BYTES
        self.server_properties: Mapping[str, Any] = {}
        self.blocked = ""
        self.failure = ""
        self.silent_beats = 0
        self.out_bytes = 0
        self._vhost = vhost
        self._login = login
        self._properties = {"product": "SlotMQ", "capabilities": dict(CAPABILITIES), **properties}
        self._channels = channels
        self._unopened = channels
        self._max_message_bytes = max_message_bytes
        self._has_received = True
        self._cutter = FrameCutter(FRAME_MAX_BYTES)
        self._contents: dict[int, ArrivingContent] = {}
        self._received: list[Received] = []
        self._out: list[Octets] = [PROTOCOL_HEADER]

    # -- input --------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Received]:
        """Process received bytes, and return the complete methods that concern the caller, in order."""
        self._has_received = True
        cutter = self._cutter
        cutter.feed(data)
        cutter.begin()
        try:
            while self.state is not ClientState.CLOSED and (frame := cutter.next_frame())[0] != NO_FRAME:
                kind, channel, payload, part = frame
                if kind == FRAME_METHOD:
                    self._method(channel, decode_method(payload), payload)
                elif kind != FRAME_HEARTBEAT:
                    self._content(kind, channel, part if isinstance(part, memoryview) else payload)
        except ProtocolError as error:
            greeting = self.state is ClientState.GREETING
            self._fail("it does not speak AMQP 0-9-1" if greeting else f"a broken frame: {error.reply_text}")
        received, self._received = self._received, []
        return received

    def _fail(self, failure: str) -> None:
        self.failure = failure
        self.state = ClientState.CLOSED

    def _method(self, channel: int, method: Method, payload: bytes) -> None:
        kind = type(method)
        if kind in CLOSES or kind is commands.Connection.CloseOk:
            self._close(channel, method)
        elif self.state is not ClientState.OPEN and self.state is not ClientState.CLOSING:
            self._open(method)
        elif kind in CONTENT_METHODS:
            if channel in self._contents:
                raise ConnectionFault(505, f"{method.name} within a content")
            self._contents[channel] = ArrivingContent(method)
        elif isinstance(method, commands.Connection.Blocked):
            self.blocked = method.reason or "without a reason"
        elif kind is commands.Connection.Unblocked:
            self.blocked = ""
        else:
            dropped = kind is commands.Basic.Ack and payload[-1] & DROPPED_BIT != 0
            self._received.append(Received(channel, method, dropped=dropped))

    def _close(self, channel: int, method: Method) -> None:
        self._received.append(Received(channel, method))
        if isinstance(method, commands.Channel.Close):
            self._contents.pop(channel, None)
            self.send(channel, commands.Channel.CloseOk())
            return
        if isinstance(method, commands.Connection.Close):
            self.send(0, commands.Connection.CloseOk())
        self.state = ClientState.CLOSED

    def _content(self, kind: int, channel: int, octets: Octets) -> None:
        """Add a content header or a part of a body. Raises: 501 above the size limit, 505 for an unexpected frame."""
        content = self._contents.get(channel)
        if content is not None and kind == FRAME_HEADER and not content.header and len(octets) >= HEADER_MIN_BYTES:
            content.add_header(octets)
            if self._max_message_bytes is not None and content.missing_bytes > self._max_message_bytes:
                raise ConnectionFault(501, f"a message of {content.missing_bytes} bytes is too large")
        elif content is not None and kind == FRAME_BODY and content.header and len(octets) <= content.missing_bytes:
            content.add_body(octets)
        else:
            raise ConnectionFault(505, f"an unexpected frame of type {kind}")
        if not content.missing_bytes:
            del self._contents[channel]
            self._received.append(Received(channel, content.method, content.header, b"".join(content.parts)))

    def _open(self, method: Method) -> None:
        """Perform the next step of the handshake."""
        match self.state, method:
            case ClientState.GREETING, commands.Connection.Start():
                self._start(method)
            case ClientState.STARTED, commands.Connection.Tune():
                self._agree(method)
                self.send(0, OpenAny(self._vhost))
                self.state = ClientState.TUNED
            case ClientState.TUNED, commands.Connection.OpenOk():
                for channel in range(1, self._channels + 1):
                    self.send(channel, commands.Channel.Open())
                self.state = ClientState.OPENING if self._channels else ClientState.OPEN
            case ClientState.OPENING, commands.Channel.OpenOk():
                self._unopened -= 1
                if not self._unopened:
                    self.state = ClientState.OPEN
            case _:
                self._fail(f"{method.name} is not expected now")

    def _start(self, start: commands.Connection.Start) -> None:
        self.server_properties = start.server_properties or {}
        mechanism, response = "EXTERNAL", "\0"
        if self._login is not None:
            user, password = self._login
            mechanism, response = "PLAIN", f"\0{user}\0{password}"
            if mechanism not in str(start.mechanisms).split():
                self._fail(f"the mechanism PLAIN is not offered, only {start.mechanisms}")
                return
        self.send(0, commands.Connection.StartOk(self._properties, mechanism, response, "en_US"))
        self.state = ClientState.STARTED

    def _agree(self, tune: commands.Connection.Tune) -> None:
        """Answer with the lower limits. The cutter keeps our frame size: content headers may exceed the lower one."""
        self.frame_max_bytes = min(tune.frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
        if self.heartbeat_s and tune.heartbeat:
            self.heartbeat_s = min(self.heartbeat_s, tune.heartbeat)
        self.send(0, commands.Connection.TuneOk(self._channels, self.frame_max_bytes, self.heartbeat_s))

    # -- output -------------------------------------------------------------------------------------------------------

    def send(self, channel: int, method: Method) -> None:
        """Send a method without a content."""
        self._out.append(encode_method(channel, method))

    def publish(self, channel: int, method_frame: bytes, header: bytes, body: bytes) -> None:
        """Send an encoded basic.publish frame with its content. HOT."""
        self._out.append(method_frame)
        self._out += content_frames(channel, header, body, self.frame_max_bytes)
        self.out_bytes += len(method_frame) + len(header) + len(body)

    def beat(self) -> bool:
        """Send a heartbeat, and return whether the broker may still be alive. Call it twice per `heartbeat_s`."""
        self.silent_beats = 0 if self._has_received else self.silent_beats + 1
        self._has_received = False
        self._out.append(HEARTBEAT)
        return self.silent_beats <= SILENT_BEATS_MAX

    def close(self, text: str) -> None:
        """Send connection.close, or end at once if the broker has not sent connection.start."""
        if self.state is ClientState.GREETING:
            self.state = ClientState.CLOSED
        elif self.state is not ClientState.CLOSING and self.state is not ClientState.CLOSED:
            self.send(0, commands.Connection.Close(REPLY_SUCCESS, text, 0, 0))
            self.state = ClientState.CLOSING

    def take_output(self) -> list[Octets]:
        """Return and clear the output, in pieces to write."""
        out, self._out, self.out_bytes = self._out, [], 0
        return out
