"""The conversation with one client as a value: octets in, packets out, and the states in which they are allowed.

    EXPECTS_CONNECT --CONNECT--> LOGIN --accepted--> OPEN --DISCONNECT, an error--> ENDED

It has no socket, clock or session. Whoever drives it answers each packet, and sends what `refusal` returns for an
error, after which nothing more is cut.
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

CONNECT_MAX_BYTES: Final = 4096  # of any packet before the login
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
    """One client's packets.

    Invariant: after a PacketError of `next_packet`, or `end`, there are no more packets.
    """

    __slots__ = ("_packet_max_bytes", "reasons", "state", "version")

    def __init__(self, packet_max_bytes: int) -> None:
        super().__init__(min(CONNECT_MAX_BYTES, packet_max_bytes))
        self._packet_max_bytes = packet_max_bytes
        self.state = EXPECTS_CONNECT
        self.version = V311
        self.reasons = True  # whether the client takes reason strings

    def feed(self, data: bytes) -> None:
        """Process received octets."""
        if self.state != ENDED:
            super().feed(data)

    def accept(self) -> None:
        """Accept packets of any size, because the client has logged in."""
        self.state = OPEN
        self.limit_bytes = self._packet_max_bytes

    def end(self) -> None:
        """Stop processing packets."""
        self.state = ENDED
        self.clear()

    def next_packet(self) -> Any:
        """Return the next packet, None when there is none: a Connect, PublishRun, Acks, Subscribe, ... HOT.

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
        """Return the packet with the reason for the end of the connection: a CONNACK, a DISCONNECT, or nothing in
        3.1.1.
        """
        reason = text if self.reasons else ""
        if self.state == OPEN:
            return encode_disconnect(self.version, reason_code, reason)
        if self.state != LOGIN:  # what came is no CONNECT
            return b""
        properties = {REASON_STRING: reason} if reason and self.version == V5 else {}
        return encode_connack(self.version, reason_code, present=False, properties=properties)


def version_of(octets: bytes, at: int, end: int) -> int:
    """Return the version for the answer to a CONNECT, even if it is malformed or has an unknown version."""
    place = at + 2 + int.from_bytes(octets[at : at + 2], "big")
    return V5 if place < end and octets[place] >= V5 else V311
