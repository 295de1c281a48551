"""An AMQP client on a raw socket that sends exactly the given bytes.

It must not import the broker: a test that uses the broker's codec cannot find errors in it.
"""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import pamqp.exceptions
import pamqp.frame
from pamqp import body as pamqp_body
from pamqp import commands, header

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
SILENCE_S = 20.0
"""The limit of a broker's answers, generous for busy machines."""

Reply = TypeVar("Reply")

CAPABILITIES: dict[str, Any] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class PeerGone(Exception):
    """The broker ended the connection: end of file or reset."""


@dataclass(frozen=True, slots=True)
class Received:
    """One frame: a method (bytes if pamqp cannot decode it), a content header, body bytes, or None for a heartbeat."""

    type: int
    channel: int
    value: Any


def frame(frame_type: int, channel: int, payload: bytes, *, end: int = FRAME_END, size: int | None = None) -> bytes:
    """Return one frame, optionally with a wrong size or a wrong end octet."""
    return struct.pack(">BHI", frame_type, channel, len(payload) if size is None else size) + payload + bytes([end])


def method_frame(channel: int, method: Any) -> bytes:
    """Return the frame of one method."""
    return pamqp.frame.marshal(method, channel)


def header_frame(channel: int, body_size: int, properties: commands.Basic.Properties | None = None) -> bytes:
    """Return the content header frame of a message of `body_size` bytes."""
    content = header.ContentHeader(body_size=body_size, properties=properties or commands.Basic.Properties())
    return pamqp.frame.marshal(content, channel)


def body_frame(channel: int, piece: bytes) -> bytes:
    """Return one body frame."""
    return pamqp.frame.marshal(pamqp_body.ContentBody(piece), channel)


def publish_frames(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    properties: commands.Basic.Properties | None = None,
    mandatory: bool = False,
    immediate: bool = False,
    piece_bytes: int = 4088,
) -> bytes:
    """Return the frames of one basic.publish: method, header, and the body in pieces."""
    publish = commands.Basic.Publish(
        exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
    )
    pieces = [method_frame(channel, publish), header_frame(channel, len(body), properties)]
    pieces += [body_frame(channel, body[at : at + piece_bytes]) for at in range(0, len(body), piece_bytes)]
    return b"".join(pieces)


class RawClient:
    """One socket to the broker, with the handshake as separate steps."""

    def __init__(self, host: str, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(SILENCE_S)
        try:
            self.socket.connect((host, port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.start: commands.Connection.Start | None = None
        self.tune: commands.Connection.Tune | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # ---- bytes

    def send(self, *pieces: bytes) -> None:
        """Send bytes as they are; if the broker has closed, the next receive reports it."""
        try:
            self.socket.sendall(b"".join(pieces))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                piece = self.socket.recv(1 << 20)
            except ConnectionResetError as error:
                raise PeerGone("connection reset") from error
            if not piece:
                raise PeerGone(f"end of file, {self._buffer!r} unread")
            self._buffer += piece
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def take_unread(self) -> bytes:
        """Return the buffered bytes after the last frame; from now on the caller reads the socket."""
        unread, self._buffer = self._buffer, b""
        return unread

    def readable(self, timeout_s: float) -> bool:
        """Return whether bytes arrive within this time."""
        return bool(self._buffer) or bool(select.select([self.socket], [], [], timeout_s)[0])

    def read_protocol_header(self) -> bytes:
        """Return the protocol header with which a broker refuses a protocol version."""
        return self._read(8)

    def receive(self) -> Received:
        """Return the next frame, heartbeats included. Raises PeerGone, TimeoutError."""
        frame_type, channel, size = struct.unpack(">BHI", self._read(7))
        rest = self._read(size + 1)
        assert rest[-1] == FRAME_END, f"broker sent a frame without its end octet: {rest[-8:]!r}"
        if frame_type == METHOD and int.from_bytes(rest[:4], "big") not in commands.INDEX_MAPPING:
            return Received(frame_type, channel, rest[:-1])
        if frame_type == METHOD or frame_type == HEADER:
            whole = struct.pack(">BHI", frame_type, channel, size) + rest
            try:
                return Received(frame_type, channel, pamqp.frame.unmarshal(whole)[2])
            except pamqp.exceptions.UnmarshalingException:  # e.g. a name that is not UTF-8, quoted in a reply text
                return Received(frame_type, channel, rest[:-1])
        assert frame_type in (BODY, HEARTBEAT), f"broker sent a frame of type {frame_type}"
        return Received(frame_type, channel, rest[:-1] if frame_type == BODY else None)

    def next(self) -> Received:
        """Return the next frame that is not a heartbeat."""
        while True:
            received = self.receive()
            if received.type != HEARTBEAT:
                return received

    def expect(self, kind: type[Reply], channel: int | None = None) -> Reply:
        """Return the next frame's method, which must be a `kind` (on `channel`)."""
        received = self.next()
        assert isinstance(received.value, kind), f"expected {kind.__name__}, got {described(received)}"
        assert channel is None or received.channel == channel, f"expected channel {channel}, got {described(received)}"
        return received.value

    def expect_content(self, channel: int) -> tuple[header.ContentHeader, bytes]:
        """Return the content header and the whole body that follow a deliver, return or get-ok."""
        received = self.next()
        assert isinstance(received.value, header.ContentHeader), f"expected a content header, got {described(received)}"
        assert received.channel == channel
        content, body = received.value, b""
        while len(body) < content.body_size:
            piece = self.next()
            assert piece.type == BODY and piece.channel == channel, f"expected a body frame, got {described(piece)}"
            body += piece.value
        return content, body

    def expect_end(self) -> None:
        """Read to the end of the connection; only heartbeats may precede it."""
        try:
            received = self.next()
        except PeerGone:
            return
        raise AssertionError(f"expected the end of the connection, got {described(received)}")

    def skip_to_end(self) -> None:
        """Read to the end of the connection and ignore what precedes it."""
        try:
            while True:
                self.receive()
        except PeerGone:
            return

    # ---- conversation

    def method(self, channel: int, method: Any) -> None:
        """Send one method."""
        self.send(method_frame(channel, method))

    def call(self, channel: int, method: Any, kind: type[Reply]) -> Reply:
        """Send one method and return the reply, which must be a `kind`."""
        self.method(channel, method)
        return self.expect(kind, channel)

    def greet(self) -> commands.Connection.Start:
        """Send the protocol header and return connection.start."""
        self.send(PROTOCOL_HEADER)
        self.start = self.expect(commands.Connection.Start, 0)
        return self.start

    def authenticate(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        """Send connection.start-ok."""
        known: Any = CAPABILITIES if capabilities is None else capabilities
        answer = commands.Connection.StartOk(
            client_properties={"product": "raw client", "capabilities": known},
            mechanism=mechanism,
            response=f"\0{user}\0{password}",
            locale="en_US",
        )
        self.method(0, answer)

    def open(
        self,
        vhost: str = "/",
        *,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        capabilities: dict[str, Any] | None = None,
    ) -> RawClient:
        """Do the whole handshake (None: accept the broker's offer) and return this client.

        After an error, the socket is closed: the caller has no client to close.
        """
        try:
            self.greet()
            self.authenticate(capabilities=capabilities)
            self.tune = self.expect(commands.Connection.Tune, 0)
            tune_ok = commands.Connection.TuneOk(
                channel_max=self.tune.channel_max if channel_max is None else channel_max,
                frame_max=self.tune.frame_max if frame_max is None else frame_max,
                heartbeat=heartbeat,
            )
            self.method(0, tune_ok)
            self.call(0, commands.Connection.Open(virtual_host=vhost), commands.Connection.OpenOk)
        except BaseException:
            self.socket.close()
            raise
        return self

    def open_channel(self, number: int = 1) -> int:
        """Open a channel and return its number."""
        self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)
        return number

    def with_channel(self) -> RawClient:
        """Open the connection and its channel 1, and return this client."""
        self.open().open_channel(1)
        return self

    def skip_to(self, kind: type[Reply], channel: int) -> Reply:
        """Return the next `kind` on this channel, and ignore what precedes it."""
        while True:
            received = self.next()
            if isinstance(received.value, kind) and received.channel == channel:
                return received.value

    def declare_queue(self, channel: int, name: str = "", **options: Any) -> str:
        """Declare a queue and return its name."""
        declare = commands.Queue.Declare(queue=name, **options)
        return str(self.call(channel, declare, commands.Queue.DeclareOk).queue)

    def expect_connection_close(self, reply_code: int) -> commands.Connection.Close:
        """Return the broker's connection.close with this code, answer it, and check that the connection ends."""
        close = self.expect(commands.Connection.Close, 0)
        assert close.reply_code == reply_code, f"expected {reply_code}, got {close.reply_code} {close.reply_text!r}"
        self.method(0, commands.Connection.CloseOk())
        self.expect_end()
        return close

    def expect_channel_close(self, channel: int, reply_code: int) -> commands.Channel.Close:
        """Return the broker's channel.close with this code, and answer it."""
        close = self.expect(commands.Channel.Close, channel)
        assert close.reply_code == reply_code, f"expected {reply_code}, got {close.reply_code} {close.reply_text!r}"
        self.method(channel, commands.Channel.CloseOk())
        return close

    def close(self) -> None:
        """Close the connection cleanly; after close-ok, either side may close the socket first."""
        close = commands.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)
        self.call(0, close, commands.Connection.CloseOk)
        self.socket.close()


def described(received: Received) -> str:
    """Return a description of a frame, with every field of a method."""
    value = received.value
    fields = {name: value[name] for name in value.attributes()} if hasattr(value, "attributes") else ""
    if isinstance(value, bytes):
        return f"channel {received.channel}: type {received.type}, {len(value)} bytes {value[:16]!r}"
    return f"channel {received.channel}: {getattr(value, 'name', type(value).__name__)} {fields}"
