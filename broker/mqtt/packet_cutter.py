"""Split received octets into MQTT packets, and join consecutive publishes and acknowledgements into runs.

Source: MQTT 5.0, section 2.1.
"""

from __future__ import annotations

from typing import Final

from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import MALFORMED, PACKET_TOO_LARGE

PUBLISH: Final = 0x30
DUP: Final = 0x08
ACKS: Final = frozenset((0x40, 0x50, 0x62, 0x70))  # PUBACK, PUBREC, PUBREL, PUBCOMP
ACK_RUN: Final = -1
PUBLISH_RUN: Final = -2
FLAGS: Final = {0x80: 0x02, 0xA0: 0x02, 0x60: 0x02}  # flags of SUBSCRIBE, UNSUBSCRIBE, PUBREL; others have 0
RUN_MAX: Final = 1000


class PublishRun:
    """Consecutive publishes with equal QoS, RETAIN and properties.

    Shapes: `topics`, `bodies` and `packet_ids` contain one item per publish; the packet id is 0 at QoS 0.
        `properties` are encoded, without their length; empty in 3.1.1.
    """

    __slots__ = ("bodies", "packet_ids", "properties", "qos", "retain", "topics")

    def __init__(self, qos: int, retain: bool, properties: bytes) -> None:
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.topics: list[bytes] = []
        self.bodies: list[bytes] = []
        self.packet_ids: list[int] = []


class PacketCutter:
    """Buffer received octets, and cut packets from them.

    `cut` returns the first octet of a packet, whose body is `buffer[body:body_end]`. For publishes, it returns
    PUBLISH_RUN and sets `publishes`. For acknowledgements, it returns ACK_RUN and sets `acked` to their packet ids and
    `ack_octet` to their first octet.
    Shapes: `has_properties` is set in MQTT 5, where publishes have properties.
    Units: `limit_bytes` is the largest packet, including its header.
    Cost: linear in the octets, however they are split.
    """

    __slots__ = ("_arrived", "_arrived_bytes", "_at", "_missing", "ack_octet", "acked", "body", "body_end", "buffer",
                 "has_properties", "limit_bytes", "publishes")  # fmt: skip

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.has_properties = False
        self.buffer = b""
        self.body = self.body_end = 0
        self.ack_octet = 0
        self.acked: list[int] = []
        self.publishes: PublishRun | None = None
        self._at = 0
        self._arrived: list[bytes] = []
        self._arrived_bytes = 0
        self._missing = 0  # the first packet needs at least this many more octets

    @property
    def buffered_bytes(self) -> int:
        """The number of octets that were not cut yet."""
        return len(self.buffer) - self._at + self._arrived_bytes

    @property
    def first_octet(self) -> int:
        """The first octet of the next packet, or -1 if it has not arrived."""
        if len(self.buffer) > self._at:
            return self.buffer[self._at]
        return self._arrived[0][0] if self._arrived else -1

    @property
    def amid_packet(self) -> bool:
        """Whether the octets end within a packet, once `cut` has returned None."""
        return self.buffered_bytes > 0

    @property
    def has_packet(self) -> bool:
        """Whether a whole packet may be buffered."""
        return self._arrived_bytes >= self._missing and self.buffered_bytes >= 2

    def feed(self, data: bytes) -> None:
        if data:
            self._arrived.append(data)
            self._arrived_bytes += len(data)

    def clear(self) -> None:
        self.buffer = b""
        self._at = self._arrived_bytes = self._missing = 0
        self._arrived.clear()

    def _gather(self) -> bool:
        """Append the fed octets to the buffer if they may complete a packet, and return whether they were appended."""
        if not self._arrived_bytes or self._arrived_bytes < self._missing:
            return False
        rest = self.buffer[self._at :]
        arrived = self._arrived
        self.buffer = arrived[0] if not rest and len(arrived) == 1 else b"".join([rest, *arrived])
        arrived.clear()
        self._at = self._arrived_bytes = self._missing = 0
        return True

    def cut(self) -> int | None:
        """Cut the next packet or run, or return None if there is no complete packet. HOT.

        Raises: PacketError 0x81 for a malformed packet, 0x95 for one over the limit; then no call may follow.
        """
        first = self._next_header()
        if first < 0:
            return None
        if first & 0xF0 == PUBLISH:
            self._cut_publishes(first)
            return PUBLISH_RUN
        if first in ACKS and self.body_end - self.body == 2:
            self._cut_acks(first)
            return ACK_RUN
        if first & 0x0F != FLAGS.get(first & 0xF0, 0):
            raise PacketError(MALFORMED, f"reserved flags in a packet of type {first >> 4}")
        self._at = self.body_end
        return first

    def _next_header(self) -> int:
        """Find the next whole packet without advancing; return its first octet, or -1 if none. Raises: as `cut`."""
        while True:
            buffer = self.buffer
            at = self._at
            left = len(buffer) - at
            if left >= 2:
                size = buffer[at + 1]
                body = at + 2
                if size >= 0x80:
                    size &= 0x7F
                    shift = 7
                    while True:
                        if body >= len(buffer):
                            size = -1
                            break
                        octet = buffer[body]
                        body += 1
                        size |= (octet & 0x7F) << shift
                        if octet < 0x80:
                            if not octet:
                                raise PacketError(MALFORMED, "a length with needless octets")
                            break
                        shift += 7
                        if shift > 21:
                            raise PacketError(MALFORMED, "a length of more than four octets")
                if size >= 0:
                    end = body + size
                    if end - at > self.limit_bytes:
                        raise PacketError(
                            PACKET_TOO_LARGE, f"a packet of {end - at} bytes, at most {self.limit_bytes} are allowed"
                        )
                    if end <= len(buffer):
                        self.body = body
                        self.body_end = end
                        return buffer[at]
                    self._missing = end - len(buffer)
            if not self._gather():
                return -1

    def _cut_publishes(self, first: int) -> None:
        """Cut a run of publishes, up to the first packet that does not belong to it. Raises: as `cut`."""
        qos = first >> 1 & 3
        if qos == 3:
            raise PacketError(MALFORMED, "QoS 3")
        buffer = self.buffer
        run: PublishRun | None = None
        flags = first & ~DUP
        while True:
            body = self.body
            end = self.body_end
            fault = ""
            topic_end = body + 2
            if topic_end <= end:
                topic_end += buffer[body] << 8 | buffer[body + 1]
            rest = topic_end + 2 if qos else topic_end
            packet_id = 0
            properties = b""
            if rest > end:
                fault = "a publish that ends within its topic or packet id"
            else:
                if qos:
                    packet_id = buffer[topic_end] << 8 | buffer[topic_end + 1]
                    if not packet_id:
                        fault = "a packet id of 0"
                if self.has_properties and rest < end and not buffer[rest]:  # the usual case: none
                    rest += 1
                elif self.has_properties:
                    size, rest = self._size_of_properties(rest, end)
                    if size < 0:
                        fault = "a publish with a wrong length of properties"
                    elif size:
                        properties = buffer[rest : rest + size]
                        rest += size
            if run is None:
                if fault:
                    raise PacketError(MALFORMED, fault)
                run = PublishRun(qos, first & 1 == 1, properties)
            elif fault or properties != run.properties:
                break
            run.topics.append(buffer[body + 2 : topic_end])
            run.bodies.append(buffer[rest:end])
            run.packet_ids.append(packet_id)
            self._at = end
            if len(run.bodies) >= RUN_MAX or not self._find_publish(flags):
                break
        self.publishes = run

    def _find_publish(self, flags: int) -> bool:
        """Find the next packet if it is a whole, short publish with these flags; otherwise return False."""
        buffer = self.buffer
        at = self._at
        if len(buffer) - at < 2 or buffer[at] & ~DUP != flags:
            return False
        size = buffer[at + 1]
        body = at + 2
        if size >= 0x80:
            if body >= len(buffer) or buffer[body] >= 0x80 or not buffer[body]:
                return False
            size = size & 0x7F | buffer[body] << 7
            body += 1
        if body + size > len(buffer) or body + size - at > self.limit_bytes:
            return False
        self.body = body
        self.body_end = body + size
        return True

    def _size_of_properties(self, at: int, end: int) -> tuple[int, int]:
        """Return the size of a publish's properties, or -1 if it is invalid, and their position."""
        size = shift = 0
        while at < end and shift <= 21:
            octet = self.buffer[at]
            at += 1
            size |= (octet & 0x7F) << shift
            if octet < 0x80:
                return (-1 if (shift and not octet) or at + size > end else size), at
            shift += 7
        return -1, at

    def _cut_acks(self, first: int) -> None:
        """Cut consecutive acknowledgements of one type without a reason code."""
        buffer = self.buffer
        at = self._at
        acked: list[int] = []
        while len(buffer) - at >= 4 and buffer[at] == first and buffer[at + 1] == 2:
            packet_id = buffer[at + 2] << 8 | buffer[at + 3]
            if not packet_id:
                if not acked:
                    raise PacketError(MALFORMED, "a packet id of 0")
                break
            acked.append(packet_id)
            at += 4
        self._at = at
        self.ack_octet = first
        self.acked = acked
