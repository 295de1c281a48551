"""One AMQP connection that reports each received frame, and makes no assumptions about the broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.broker_process import BrokerAddress
from tests.differential.wire import decode_method, decode_properties, encode_method, encode_properties

__all__ = ["CAPABILITIES", "PROTOCOL_HEADER", "Channel", "Heard", "Link", "frame"]

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
_WITH_CONTENT: Final = frozenset(("basic.deliver", "basic.return", "basic.get-ok"))


@dataclass(slots=True)
class Heard:
    """A received method with its message; `name` is `gone` for the end of the connection."""

    channel: int
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""


@dataclass(slots=True)
class Channel:
    """The client's state of a channel."""

    open: bool = False
    confirming: bool = False
    published: int = 0
    unconfirmed: set[int] = field(default_factory=set)
    delivered: list[tuple[int, bytes]] = field(default_factory=list)
    last_tag: int = 0


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame as bytes."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


class Link:
    """A connection named by a letter; `hear` is called with each received method, in order."""

    def __init__(self, letter: str, hear: Callable[[Link, Heard], None]) -> None:
        self.letter = letter
        self.hear = hear
        self.channels: dict[int, Channel] = {}
        self.alive = False
        self.ending = False
        self.muted = False
        self.verbose = False
        self.corked: bytearray | None = None
        self.frame_max_bytes = 131_072
        self._partial: dict[int, tuple[Heard, int]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def dial(self, address: BrokerAddress, protocol: bytes = PROTOCOL_HEADER) -> None:
        """Connect and send the protocol header."""
        reader, self._writer = await asyncio.open_connection(address.host, address.port)
        self.alive = True
        self.send(protocol)
        self._reading = asyncio.create_task(self._read(reader))

    def send(self, octets: bytes) -> None:
        """Send bytes unchanged, unless the connection has ended; buffer them while the connection is corked."""
        if self.corked is not None:
            self.corked += octets
        elif self._writer is not None and self.alive:
            self._writer.write(octets)

    def uncork(self) -> None:
        """Send the buffered bytes in one write."""
        assert self.corked is not None
        octets, self.corked = bytes(self.corked), None
        self.send(octets)

    def method(self, channel: int, name: str, fields: Mapping[str, Any]) -> None:
        """Send one method."""
        self.send(frame(METHOD, channel, encode_method(name, fields)))

    def publish(self, channel: int, fields: Mapping[str, Any], properties: Mapping[str, Any], body: bytes) -> None:
        """Send one message, its body in frames of the negotiated size."""
        piece = self.frame_max_bytes - 8
        octets = frame(METHOD, channel, encode_method("basic.publish", fields))
        octets += frame(HEADER, channel, encode_properties(len(body), properties))
        octets += b"".join(frame(BODY, channel, body[at : at + piece]) for at in range(0, len(body), piece))
        self.send(octets)

    async def close(self) -> None:
        """Close the socket."""
        self.alive = False
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    # ---- receiving -------------------------------------------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(7)
                if head.startswith(b"AMQP"):
                    self.hear(self, Heard(0, f"protocol-header {(head + await reader.readexactly(1)).hex()}"))
                    continue
                kind, channel, size = struct.unpack(">BHI", head)
                payload = await reader.readexactly(size + 1)
                assert payload[-1] == 0xCE, "a frame without its end octet"
                self._frame(kind, channel, payload[:-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            self.alive = False
            self.hear(self, Heard(0, "gone"))
        except (AssertionError, KeyError, IndexError, struct.error) as error:
            self.alive = False
            self.hear(self, Heard(0, f"sent bytes that cannot be decoded: {error!r}"))

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            name, fields = decode_method(payload)
            heard = Heard(channel, name, fields)
            if name in _WITH_CONTENT:
                self._partial[channel] = (heard, -1)
            else:
                assert channel not in self._partial, f"{name} between a content header and its body"
                self.hear(self, heard)
        elif kind in (HEADER, BODY):
            heard, size = self._partial[channel]
            if kind == HEADER:
                size, heard.properties = decode_properties(payload)
            else:
                heard.body += payload
            self._partial[channel] = (heard, size)
            if len(heard.body) >= size:
                del self._partial[channel]
                self.hear(self, heard)
        else:
            assert kind == HEARTBEAT, f"a frame of type {kind}"
