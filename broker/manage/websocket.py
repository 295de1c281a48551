"""MQTT over WebSocket: the route /mqtt, and the layer of frames between a client's socket and the broker's transport.

Frames and MQTT packets need not coincide: MQTT reads the concatenated payloads. Source: RFC 6455; MQTT 5, section 6.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.event_log import get_logger
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.client import ApiClient
from broker.manage.client_protocol import LingeringTransport
from broker.manage.origin import is_foreign
from broker.manage.refusal import HttpRefused, bad_request
from broker.mqtt.websocket_frames import BINARY, NORMAL, OPEN, PONG, WebSocketFrames, encode_close, encode_frame

PATH: Final = "/mqtt"
SUBPROTOCOL: Final = "mqtt"
VERSION: Final = "13"
KEY_BYTES: Final = 16
ACCEPTS: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FRAMES_AT_ONCE: Final = 128  # frames of a client that are read in one turn of the loop
NOBODY: Final = asyncio.Protocol()

_log = get_logger()


class WebSocket(LingeringTransport):
    """The broker's transport to a WebSocket client, and the protocol of the client's socket.

    Only the latest ping is answered, and only while the client reads.
    """

    def __init__(self, transport: asyncio.Transport, client: asyncio.Protocol, origin: str) -> None:
        """`origin` is the origin of another site's page, or empty."""
        super().__init__(transport)
        self._client = client
        self._origin = origin
        self._frames = WebSocketFrames()
        self._more = False  # whether frames of the last read remain
        self._reads = True  # whether the broker's transport reads
        self._reads_soon = False
        self._writable = True

    # -- callbacks of the loop ----------------------------------------------------------------------------------------

    def begin(self, data: bytes) -> None:
        """Serve the client, which has sent `data` after its request."""
        protocol: Any = self
        self._transport.set_protocol(protocol)
        self._client.connection_made(self)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.is_closing():
            self.discard(len(data))
        else:
            self._frames.feed(data)
            self._read()

    def _read(self) -> None:
        """Pass on the payloads of the next frames, and schedule reading the remaining frames."""
        payload, self._more = self._frames.read(FRAMES_AT_ONCE)
        self._answer_ping()
        if payload:
            self._client.data_received(payload)
        if self.is_closing():
            return
        if self._more or self._frames.code != OPEN:
            self._transport.pause_reading()
            self._read_soon()
        elif self._reads:
            self._transport.resume_reading()

    def _read_soon(self) -> None:
        if not self._reads_soon:
            self._reads_soon = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read the remaining frames, or close the connection after the last one."""
        self._reads_soon = False
        if not self._reads or self.is_closing():
            return
        code, reason = self._frames.code, self._frames.reason
        if code == OPEN:
            self._read()
            return
        self._transport.write(encode_close(code, reason))
        if reason:
            client: Any = self._client
            _log.warning("mqtt.websocket_refused", conn=client.session.name, code=code, reason=reason)
            super().close()
        else:
            self._transport.close()

    def _answer_ping(self) -> None:
        if self._writable and not self.is_closing():
            ping = self._frames.take_ping()
            if ping is not None:
                self._transport.write(encode_frame(PONG, ping))

    def eof_received(self) -> bool | None:
        return self._client.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """End the session, and drop the reference to the broker's transport to avoid a reference cycle."""
        self.forget()
        client, self._client = self._client, NOBODY
        client.connection_lost(error)

    def pause_writing(self) -> None:
        self._writable = False
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._writable = True
        self._answer_ping()
        self._client.resume_writing()

    # -- calls of the broker's transport ------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection, including the origin of another site's page."""
        if name == "web":
            return True
        return self._origin if name == "origin" else super().get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send pieces as one frame."""
        if not self.is_closing():
            self._transport.write(encode_frame(BINARY, b"".join(pieces)))

    def pause_reading(self) -> None:
        self._reads = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading in the next turn of the loop, beginning with the remaining frames."""
        self._reads = True
        self._read_soon()

    def can_write_eof(self) -> bool:
        """Return False: a WebSocket has no half-closed connection."""
        return False

    def close(self) -> None:
        """Send the remaining output and a close frame, then close."""
        if not self.is_closing():
            self._transport.write(encode_close(NORMAL))
            super().close()


class Upgrade(Response):
    """The answer 101, after which the connection is used for MQTT."""

    def __init__(self, client: ApiClient, headers: Headers, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        super().__init__(status_code=101)
        self._client = client
        self._request = headers
        self._new_protocol = new_protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        digest = hashlib.sha1(self._request["sec-websocket-key"].encode() + ACCEPTS, usedforsecurity=False).digest()
        headers = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", base64.b64encode(digest).decode()),
            ("Sec-WebSocket-Protocol", SUBPROTOCOL),
        ]
        origin = self._request["origin"] if is_foreign(self._request) else ""
        switched = self._client.switch(headers)
        if switched is not None:
            WebSocket(switched[0], self._new_protocol(), origin).begin(switched[1])


async def upgrade(call: Call) -> Response:
    """Answer the opening handshake of a WebSocket."""
    headers = call.request.headers
    if "websocket" not in words(headers, "upgrade") or "upgrade" not in words(headers, "connection"):
        raise HttpRefused(426, "this path is for MQTT over WebSocket", headers=(("Upgrade", "websocket"),), fatal=True)
    if headers.get("sec-websocket-version") != VERSION:
        raise HttpRefused(426, f"the version of WebSocket is {VERSION}", headers=(("Sec-WebSocket-Version", VERSION),))
    if SUBPROTOCOL not in words(headers, "sec-websocket-protocol"):
        raise bad_request(f"the header Sec-WebSocket-Protocol should contain {SUBPROTOCOL}")
    try:
        key = base64.b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES or headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise bad_request("not the opening handshake of a WebSocket")
    new_protocol = call.broker.listener.protocols.get("mqtt")
    if new_protocol is None or call.client.last:
        raise HttpRefused(503, "the broker accepts no MQTT clients now", fatal=True)
    return Upgrade(call.client, headers, new_protocol)


def words(headers: Headers, name: str) -> list[str]:
    """Return the words of a header, in lower case."""
    return [word.strip().lower() for value in headers.getlist(name) for word in value.split(",")]


ROUTES: Final = (ApiRoute("GET", PATH, Needs.NOTHING, upgrade),)
