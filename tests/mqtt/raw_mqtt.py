"""An MQTT client on a raw socket that sends exactly the given packets. It does not import the broker."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import NamedTuple, Self

SILENCE_S = 20.0
CONNACK, PUBLISH, PUBACK, PUBREC, PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x70
SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 0x90, 0xB0, 0xD0, 0xE0


def varint(value: int) -> bytes:
    """Return a variable byte integer."""
    octets = bytearray()
    while True:
        value, octet = value >> 7, value & 0x7F
        octets.append(octet | (0x80 if value else 0))
        if not value:
            return bytes(octets)


def text(value: str | bytes) -> bytes:
    """Return a string with its length."""
    octets = value.encode() if isinstance(value, str) else value
    return len(octets).to_bytes(2, "big") + octets


def packet(first: int, *pieces: bytes) -> bytes:
    """Return a packet with its header."""
    body = b"".join(pieces)
    return bytes([first]) + varint(len(body)) + body


def connect(
    client_id: str,
    version: int = 5,
    *,
    clean: bool = True,
    user: str = "guest",
    password: str = "guest",
    keep_alive_s: int = 60,
    properties: bytes = b"",
    will: bytes = b"",
    will_flags: int = 0,
) -> bytes:
    """Return a CONNECT packet; `will` is its encoded part from the will's properties to the payload."""
    flags = 0xC0 | (2 if clean else 0) | will_flags
    head = text("MQTT") + bytes([version, flags]) + keep_alive_s.to_bytes(2, "big")
    extra = varint(len(properties)) + properties if version == 5 else b""
    return packet(0x10, head, extra, text(client_id), will, text(user), text(password))


def publish(
    topic: str | bytes, body: bytes, packet_id: int = 0, properties: bytes | None = b"", flags: int = 0
) -> bytes:
    """Return a PUBLISH packet, at QoS 1 if it has a packet id; `properties` is None in 3.1.1."""
    extra = b"" if properties is None else varint(len(properties)) + properties
    identifier = packet_id.to_bytes(2, "big") if packet_id else b""
    return packet(0x30 | (2 if packet_id else 0) | flags, text(topic), identifier, extra, body)


def pubrel(packet_id: int) -> bytes:
    """Return a PUBREL packet."""
    return packet(0x62, packet_id.to_bytes(2, "big"))


def subscribe(packet_id: int, *filters: tuple[str, int], properties: bytes | None = b"") -> bytes:
    """Return a SUBSCRIBE packet with filters and their options."""
    extra = b"" if properties is None else varint(len(properties)) + properties
    return packet(
        0x82, packet_id.to_bytes(2, "big"), extra, *[text(name) + bytes([options]) for name, options in filters]
    )


class Delivery(NamedTuple):
    """A PUBLISH packet of MQTT 5. Shapes: `packet_id` is 0 at QoS 0; `properties` are encoded, without their length."""

    topic: str
    body: bytes
    qos: int
    dup: bool
    retain: bool
    packet_id: int
    properties: bytes


def delivery(first: int, octets: bytes) -> Delivery:
    """Return the fields of a PUBLISH packet with fewer than 128 octets of properties."""
    assert first & 0xF0 == PUBLISH, f"0x{first:02x} {octets!r}"
    at = 2 + int.from_bytes(octets[:2], "big")
    topic, qos, packet_id = octets[2:at].decode(), first >> 1 & 3, 0
    if qos:
        packet_id = int.from_bytes(octets[at : at + 2], "big")
        at += 2
    end = at + 1 + octets[at]
    properties = octets[at + 1 : end]
    return Delivery(topic, octets[end:], qos, first & 8 != 0, first & 1 != 0, packet_id, properties)


class RawMqtt:
    """One MQTT connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), SILENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._buffer = b""

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the socket."""
        self.close()

    @property
    def opened(self) -> socket.socket:
        """The socket."""
        return self._socket

    def close(self) -> None:
        """Close the socket without a DISCONNECT."""
        self._socket.close()

    def send(self, *packets: bytes) -> Self:
        """Send packets in one call."""
        self._socket.sendall(b"".join(packets))
        return self

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._buffer += data
        octets, self._buffer = self._buffer[:count], self._buffer[count:]
        return octets

    def read(self) -> tuple[int, bytes]:
        """Return the first octet and the body of the next packet. Raises: EOFError."""
        first = self._read(1)[0]
        size = shift = 0
        while True:
            octet = self._read(1)[0]
            size |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                return first, self._read(size)

    def expect(self, kind: int) -> bytes:
        """Return the body of the next packet, which must be of this kind."""
        first, body = self.read()
        assert first & 0xF0 == kind, f"0x{first:02x} {body!r}"
        return body

    def receive(self) -> Delivery:
        """Return the next packet, which must be a PUBLISH of MQTT 5."""
        return delivery(*self.read())

    def acknowledge(self, packet_id: int) -> None:
        """Send a PUBACK."""
        self.send(packet(0x40, packet_id.to_bytes(2, "big")))

    def silent(self, seconds: float = 0.2) -> bool:
        """Return whether no unread packet has arrived and none arrives for a while."""
        if self._buffer:
            return False
        self._socket.settimeout(seconds)
        try:
            self._buffer += self._socket.recv(65536)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(SILENCE_S)
        return False

    def ends(self) -> bool:
        """Return whether the broker closes the connection now, without another packet."""
        try:
            self.read()
        except (EOFError, ConnectionResetError):
            return True
        return False

    def enter(self, client_id: str, version: int = 5, *, clean: bool = True, properties: bytes = b"") -> bytes:
        """Connect, assert that the broker accepts, and return the body of the CONNACK."""
        body = self.send(connect(client_id, version, clean=clean, properties=properties)).expect(CONNACK)
        assert body[1] == 0, body
        return body

    def round_trip(self) -> None:
        """Wait until the broker has handled all sent packets; the next packet must be the PINGRESP."""
        self.send(packet(0xC0)).expect(PINGRESP)
