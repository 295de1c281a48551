"""MQTT 3.1.1 and 5 for a load generator: packets, a client's connection, and a scanner of received packets."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from struct import Struct
from types import MappingProxyType
from typing import Final

from broker.perf.faults import BrokenStream, Refusal
from broker.perf.peer import CALL_LIMIT_S, Address, PeerSocket
from broker.perf.scanner import BodyCallback, Scanner, equal_run

MQTT_PORTS: Final = MappingProxyType({"mqtt": 1883, "mqtts": 8883})
VERSIONS: Final = MappingProxyType({"3.1.1": 4, "5": 5})  # name -> protocol level
PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, PINGRESP, DISCONNECT = 3, 4, 5, 6, 7, 13, 14  # packet types
PACKET_ID: Final = Struct(">H")

_CONNACK, _SUBACK = 2, 9
_REFUSED: Final = 0x80  # this reason code and higher ones are errors
_UNROUTED: Final = 0x10  # reason code "No matching subscribers"
_RECEIVE_MAXIMUM, _MAXIMUM_QOS, _REASON = 0x21, 0x24, 0x1F
_SIZES: Final = MappingProxyType(
    {0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
)
_CLOSE_LIMIT_S: Final = 2.0
_FOREVER: Final = 0xFFFF_FFFF


def packet(head: int, *parts: bytes) -> bytes:
    """Return a packet with its fixed header."""
    rest = b"".join(parts)
    left, length = len(rest), bytearray()
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return bytes((head, *length, left)) + rest


def text(value: str) -> bytes:
    """Return a string with its length, as MQTT encodes it."""
    raw = value.encode()
    return PACKET_ID.pack(len(raw)) + raw


def publish(level: int, topic: str, body: bytes, qos: int, packet_id: int, *, retain: bool) -> bytes:
    """Return a PUBLISH without properties."""
    number = PACKET_ID.pack(packet_id) if qos else b""
    return packet(PUBLISH << 4 | qos << 1 | retain, text(topic), number, bytes(level == 5), body)


def properties_of(raw: bytes) -> dict[int, int | str]:
    """Return the properties of a CONNACK by identifier; `raw` begins with their length. Raises: BrokenStream."""
    at, end = properties_place(raw, 0, len(raw)) if raw else (0, 0)
    found: dict[int, int | str] = {}
    while at < min(end, len(raw)):
        name, size = raw[at], _SIZES.get(raw[at], 0)
        if size:
            found[name] = int.from_bytes(raw[at + 1 : at + 1 + size], "big")
        else:
            size = 2 + int.from_bytes(raw[at + 1 : at + 3], "big")
            found[name] = raw[at + 3 : at + 1 + size].decode(errors="replace")
            if name == 0x26:  # a user property has two strings
                size += 2 + int.from_bytes(raw[at + 1 + size : at + 3 + size], "big")
        at += 1 + size
    return found


class MqttPeer(PeerSocket):
    """A client's connection, without keep alive."""

    round_trip = b"\xc0\x00"  # PINGREQ

    def __init__(
        self,
        address: Address,
        client_id: str,
        level: int,
        *,
        lasting: bool = False,
        receive_maximum: int = 0,
        unsent_bytes: int = 0,
    ) -> None:
        """Connect; `close` deletes a `lasting` session. Raises: Refusal, BrokenStream, OSError."""
        super().__init__(address.connect(CALL_LIMIT_S, 0, unsent_bytes))
        self._lasting_session = (address, client_id, level) if lasting else None
        user = address.user if address.vhost == "/" else f"{address.vhost}:{address.user}"
        fields = b"\x11" + _FOREVER.to_bytes(4, "big") if lasting else b""
        fields += b"\x21" + PACKET_ID.pack(receive_maximum) if receive_maximum else b""
        properties_field = bytes((len(fields),)) + fields if level == 5 else b""
        flags = bytes((level, 0xC0 if lasting else 0xC2, 0, 0))
        login = text(user), text(address.password)
        try:
            answer = self.call(packet(0x10, text("MQTT"), flags, properties_field, text(client_id), *login), _CONNACK)
            properties = properties_of(answer[2:])
            if answer[1]:
                raise Refusal(f"CONNACK {answer[1]:#04x} {properties.get(_REASON, '')}".rstrip())
        except BaseException:
            self.socket.close()
            raise
        self._level = level
        self.qos_max = int(properties.get(_MAXIMUM_QOS, 2))
        self.receive_maximum = int(properties.get(_RECEIVE_MAXIMUM, 0xFFFF))

    def scanner(self, *, lenient: bool = False, on_bodies: BodyCallback | None = None) -> PacketScanner:
        return PacketScanner(self._level, on_bodies)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; `received` may contain packets when this returns. Raises: Refusal, BrokenStream, OSError."""
        wanted = text(topic_filter) + bytes((qos,))
        answer = self.call(packet(0x82, PACKET_ID.pack(1), bytes(self._level == 5), wanted), _SUBACK)
        if answer[-1] >= _REFUSED:
            raise Refusal(f"SUBACK {answer[-1]:#04x} for '{topic_filter}'")

    def call(self, request: bytes, answer: int) -> bytes:
        """Send a packet, and return the answer without its fixed header. Raises: Refusal, BrokenStream, OSError."""
        self.socket.sendall(request)
        at = 0  # packets that arrive before the answer stay in `received`
        while True:
            head = header_sizes(self.received, at, len(self.received))
            if head is None or len(self.received) < at + head[1]:
                self.receive()
            elif self.received[at] >> 4 == answer:
                found = bytes(self.received[at + head[0] : at + head[1]])
                del self.received[at : at + head[1]]
                return found
            else:
                at += head[1]

    def close(self) -> None:
        """Disconnect, read what is in flight, and delete a lasting session."""
        with suppress(OSError, Refusal), self.socket:
            self.socket.settimeout(_CLOSE_LIMIT_S)
            self.socket.sendall(b"\xe0\x00")
            self.socket.shutdown(socket.SHUT_WR)
            stop_at = time.monotonic() + _CLOSE_LIMIT_S
            while self.socket.recv(65536) and time.monotonic() < stop_at:
                continue
        if self._lasting_session is not None:
            with suppress(OSError, Refusal):
                MqttPeer(*self._lasting_session).close()


def properties_place(buffer: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """Return the start and the end of the properties whose length begins at `at`. Raises: BrokenStream."""
    sizes = header_sizes(buffer, at - 1, end)  # their length is encoded like that of a packet
    if sizes is None:
        raise BrokenStream("properties without their length")
    return at - 1 + sizes[0], at - 1 + sizes[1]


def header_sizes(buffer: bytes | bytearray, at: int, end: int) -> tuple[int, int] | None:
    """Return the lengths of a fixed header and of its packet, or None for a partial header. Raises: BrokenStream."""
    size, shift = 0, 0
    for place in range(at + 1, min(end, at + 5)):
        size |= (buffer[place] & 127) << shift
        shift += 7
        if buffer[place] < 128:
            return place + 1 - at, place + 1 - at + size
    if end - at >= 5:
        raise BrokenStream("a remaining length of five bytes")
    return None


class PacketScanner(Scanner):
    """Count the packets that a broker sends to an MQTT client, and prepare the answers.

    Shapes: message n of a publisher has packet id 1 + (n - 1) % `packet_ids`; `answers` are the packets to send.
    """

    def __init__(self, level: int, on_bodies: BodyCallback | None = None) -> None:
        super().__init__(lenient=True, on_bodies=on_bodies)
        self.packet_ids = 1
        self.answers = b""
        self._level = level

    def take_answers(self) -> bytes:
        """Return and clear the packets to send."""
        answers, self.answers = self.answers, b""
        return answers

    def scan(self, buffer: bytearray, end: int) -> int:
        """Count every complete packet in `buffer[:end]` and return the length of these packets in bytes.

        Raises: Refusal, BrokenStream.
        Cost: a few slices for consecutive packets of one kind and length.
        """
        at = 0
        while (head := header_sizes(buffer, at, end)) is not None and at + head[1] <= end:
            first, stride = head
            kind = buffer[at] >> 4
            if kind == PUBLISH:
                at += stride * self._messages(buffer, at, end, first, stride)
            elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
                at += stride * self._acks(buffer, at, end, first, stride)
            elif kind == PINGRESP:
                self.settled += 1
                at += stride
            elif kind == DISCONNECT:
                raise Refusal(f"DISCONNECT {buffer[at + first] if stride > first else 0:#04x}")
            else:
                raise BrokenStream(f"packet type {kind} was not expected while messages flow")
        return at

    def _messages(self, buffer: bytearray, at: int, end: int, first: int, stride: int) -> int:
        """Count consecutive messages with the first one's header, topic length and property length; return how many."""
        qos = buffer[at] >> 1 & 3
        id_at = first + 2 + int.from_bytes(buffer[at + first : at + first + 2], "big")
        rest_at = id_at + (2 if qos else 0)
        offsets = [*range(first + 2)]
        if self._level == 5:
            start, stop = properties_place(buffer, at + rest_at, at + stride)
            offsets += range(rest_at, start - at)
            rest_at = stop - at
        count = equal_run(buffer, at, stride, (end - at) // stride, offsets)
        self.deliveries += count
        self.body_bytes += count * (stride - rest_at)
        if self._on_bodies and stride > rest_at:
            self._on_bodies(buffer, at + rest_at, stride, count)
        if qos:
            self._answer(PUBACK << 4 if qos == 1 else PUBREC << 4, buffer, at + id_at, stride, count)
        return count

    def _acks(self, buffer: bytearray, at: int, end: int, first: int, stride: int) -> int:
        """Count and answer consecutive acknowledgements of one kind, length and reason; return how many."""
        reason_at = first + 2
        reason = buffer[at + reason_at] if stride > reason_at else 0
        kind = buffer[at] >> 4
        offsets = [*range(first), reason_at] if stride > reason_at else [*range(first)]
        count = equal_run(buffer, at, stride, (end - at) // stride, offsets)
        if reason == _UNROUTED:
            self.returned += count
        if kind == PUBREL:
            self._answer(PUBCOMP << 4, buffer, at + first, stride, count)
        elif kind == PUBREC and reason < _REFUSED:
            self._answer(PUBREL << 4 | 2, buffer, at + first, stride, count)
        else:
            before = self.confirms.count
            stop = at + count * stride
            self._confirm([high << 8 | low for high, low in zip(
                buffer[at + first : stop : stride], buffer[at + first + 1 : stop : stride], strict=True)])  # fmt: skip
            self.nacked += self.confirms.count - before if reason >= _REFUSED else 0
        return count

    def _confirm(self, packet_ids: list[int]) -> None:
        confirms, first, ids = self.confirms, packet_ids[0], self.packet_ids
        if first - 1 == confirms.watermark % ids and packet_ids == list(range(first, first + len(packet_ids))):
            confirms.add(confirms.watermark + len(packet_ids), multiple=True)
            return
        for packet_id in packet_ids:
            done = confirms.watermark
            confirms.add(done + 1 + (packet_id - 1 - done) % ids, multiple=False)

    def _answer(self, head: int, buffer: bytearray, id_at: int, stride: int, count: int) -> None:
        """Answer `count` packets whose ids are `stride` bytes apart."""
        stop = id_at + count * stride
        answers = bytearray(bytes((head, 2, 0, 0)) * count)
        answers[2::4] = buffer[id_at : stop - stride + 1 : stride]
        answers[3::4] = buffer[id_at + 1 : stop - stride + 2 : stride]
        self.answers += bytes(answers)
