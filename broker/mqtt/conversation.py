"""The conversation with one client: decode received octets into packets, and check the state of the connection.

    EXPECTS_CONNECT --CONNECT--> LOGIN --accept()--> OPEN
    any state --end()--> ENDED

It has no socket, clock or session. The caller answers each packet, and sends the packet of `refusal` after an error.
"""

from __future__ import annotations

from typing import Any, Final

from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import ACK_RUN, PUBLISH_RUN, PacketCutter
from broker.mqtt.packets import (
    V5,
    V311,
    Acks,
    Connect,
    Disconnect,
    Subscribe,
    Unsubscribe,
    encode_connack,
    encode_disconnect,
    read_ack,
    read_connect,
    read_disconnect,
    read_subscribe,
    read_unsubscribe,
)
from broker.mqtt.properties import REASON_STRING, REQUEST_PROBLEM
from broker.mqtt.reason_codes import PROTOCOL_ERROR
from broker.mqtt.wire import Reader

CONNECT_MAX_BYTES: Final = 4096  # the largest packet before the login
CONNECT: Final = 0x10
EXPECTS_CONNECT: Final = 0
LOGIN: Final = 1
OPEN: Final = 2
ENDED: Final = 3


class Ping:
    """A PINGREQ packet."""

    __slots__ = ()


PING: Final = Ping()


class Conversation(PacketCutter):
    """The packets of one client, and the state of its connection.

    Invariant: after a PacketError from `next_packet`, the caller calls `end`; then there are no more packets.
    """

    __slots__ = ("_packet_max_bytes", "reasons", "state", "version")

    def __init__(self, packet_max_bytes: int) -> None:
        super().__init__(min(CONNECT_MAX_BYTES, packet_max_bytes))
        self._packet_max_bytes = packet_max_bytes
        self.state = EXPECTS_CONNECT
        self.version = V311
        self.reasons = True  # whether the client accepts reason strings

    def feed(self, data: bytes) -> None:
        if self.state != ENDED:
            super().feed(data)

    def accept(self) -> None:
        """Enter the state OPEN after the login, and accept packets up to the configured size."""
        self.state = OPEN
        self.limit_bytes = self._packet_max_bytes

    def end(self) -> None:
        """Enter the state ENDED, and discard the remaining octets."""
        self.state = ENDED
        self.clear()

    def next_packet(self) -> Any:
        """Return the next packet or run of packets, or None if none is complete. HOT.

        Raises: PacketError.
        """
        if self.state == ENDED:
            return None
        if self.state == EXPECTS_CONNECT and self.first_octet not in (-1, CONNECT):
            raise PacketError(PROTOCOL_ERROR, "the first packet is no CONNECT")
        kind = self.cut()
        if kind is None:
            return None
        if self.state != OPEN:
            return self._connect(kind)
        if kind == PUBLISH_RUN:
            return self.publishes
        if kind == ACK_RUN:
            return Acks(self.ack_octet, self.acked)
        return self._decode(kind)

    def _connect(self, kind: int) -> Connect:
        if self.state == LOGIN or kind != CONNECT:
            raise PacketError(PROTOCOL_ERROR, "a packet before the answer to CONNECT")
        reader = Reader(self.buffer, self.body, self.body_end)
        self.version = version_of(self.buffer, self.body, self.body_end)
        self.state = LOGIN
        connect = read_connect(reader)
        self.version = connect.version
        if connect.version == V5:
            self.has_properties = True
        self.reasons = connect.properties.get(REQUEST_PROBLEM, 1) == 1
        return connect

    def _decode(self, kind: int) -> Acks | Subscribe | Unsubscribe | Ping | Disconnect:
        packet = kind & 0xF0
        reader = Reader(self.buffer, self.body, self.body_end)
        version = self.version
        if 0x40 <= packet < 0x80:
            return read_ack(reader, version, kind)
        if packet == 0x80:
            return read_subscribe(reader, version)
        if packet == 0xA0:
            return read_unsubscribe(reader, version)
        if packet == 0xE0:
            return read_disconnect(reader, version)
        if packet == 0xC0:
            reader.finish()
            return PING
        what = "a second CONNECT" if packet == CONNECT else f"a packet of type {packet >> 4}"
        raise PacketError(PROTOCOL_ERROR, f"{what} is not allowed here")

    def refusal(self, reason_code: int, text: str) -> bytes:
        """Return the CONNACK or DISCONNECT that reports why the connection is closed, or b"" if there is none."""
        reason = text if self.reasons else ""
        if self.state == OPEN:
            return encode_disconnect(self.version, reason_code, reason)
        if self.state != LOGIN:
            return b""
        properties = {REASON_STRING: reason} if reason and self.version == V5 else {}
        return encode_connack(self.version, reason_code, present=False, properties=properties)


def version_of(octets: bytes, at: int, end: int) -> int:
    """Return the version in which to answer a CONNECT, even if it is malformed or has an unknown version."""
    version_at = at + 2 + int.from_bytes(octets[at : at + 2], "big")
    return V5 if version_at < end and octets[version_at] >= V5 else V311
