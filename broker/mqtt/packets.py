"""Decode the packets of clients, and encode those of the broker. Source: MQTT 5.0, section 3; MQTT 3.1.1."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.mqtt.errors import PacketError
from broker.mqtt.properties import (
    REASON_STRING,
    RESPONSE_TOPIC,
    SESSION_EXPIRY_S,
    WILL,
    encode_properties,
    read_properties,
)
from broker.mqtt.reason_codes import (
    MALFORMED,
    PROTOCOL_ERROR,
    RETURN_CODES_311,
    SUCCESS,
    TOPIC_INVALID,
    VERSION_UNSUPPORTED,
)
from broker.mqtt.topics import SHARED, filter_of
from broker.mqtt.wire import Reader, varint

V311: Final = 4
V5: Final = 5
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBACK: Final = 0x90
UNSUBACK: Final = 0xB0
PROTOCOL_NAME: Final = b"MQTT"
PINGRESP: Final = b"\xd0\x00"
NO_PROPERTIES: Final[dict[int, Any]] = {}


class Will(NamedTuple):
    """The message that the broker publishes for a client whose connection is lost."""

    topic: bytes
    body: bytes
    qos: int
    retain: bool
    properties: dict[int, Any]


class Connect:
    """A CONNECT packet.

    Shapes: `user` and `password` are None if the packet has none. `properties` is empty in 3.1.1.
    Units: `session_expiry_s` is None for a 3.1.1 session without Clean Session: the broker chooses its expiry.
    """

    __slots__ = ("clean_start", "client_id", "keep_alive_s", "password", "properties", "session_expiry_s", "user",
                 "version", "will")  # fmt: skip

    def __init__(
        self,
        version: int,
        client_id: str,
        clean_start: bool,
        keep_alive_s: int,
        properties: dict[int, Any],
        will: Will | None,
        user: str | None,
        password: bytes | None,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive_s = keep_alive_s
        self.properties = properties
        self.will = will
        self.user = user
        self.password = password
        self.session_expiry_s: int | None = 0
        if version == V5:
            self.session_expiry_s = properties.get(SESSION_EXPIRY_S, 0)
        elif not clean_start:
            self.session_expiry_s = None

    def forget(self) -> None:
        """Clear the fields that are not needed after the login: the password and the properties."""
        self.password = None
        self.properties = NO_PROPERTIES


class Subscription:
    """One topic filter of a SUBSCRIBE, with its options; in 3.1.1 the QoS is the only one."""

    __slots__ = ("no_local", "qos", "retain_as_published", "retain_handling", "topic_filter")

    def __init__(self, topic_filter: str, options: int) -> None:
        self.topic_filter = topic_filter
        self.qos = options & 3
        self.no_local = options & 4 != 0
        self.retain_as_published = options & 8 != 0
        self.retain_handling = options >> 4


class Subscribe(NamedTuple):
    """A SUBSCRIBE packet."""

    packet_id: int
    properties: dict[int, Any]
    subscriptions: list[Subscription]


class Unsubscribe(NamedTuple):
    """An UNSUBSCRIBE packet."""

    packet_id: int
    filters: list[str]


class Acks:
    """Consecutive acknowledgements of one type without a reason code, or a single one with a reason code.

    Shapes: `octet` is the first octet of each packet.
    """

    __slots__ = ("octet", "packet_ids", "reason_code")

    def __init__(self, octet: int, packet_ids: list[int], reason_code: int = SUCCESS) -> None:
        self.octet = octet
        self.packet_ids = packet_ids
        self.reason_code = reason_code


class Disconnect(NamedTuple):
    """A DISCONNECT packet. Units: `session_expiry_s` is None unless the packet changes it."""

    reason_code: int
    session_expiry_s: int | None


# -- packets of a client -----------------------------------------------------------------------------------------------


def read_connect(reader: Reader) -> Connect:
    """Read a CONNECT packet. Raises: PacketError 0x81, 0x82; 0x84 for another protocol or version."""
    name, version = reader.binary(), reader.octet()
    if name != PROTOCOL_NAME or version not in (V311, V5):
        raise PacketError(VERSION_UNSUPPORTED, f"protocol {name[:10]!r} {version}: MQTT 3.1.1 and 5 are supported")
    flags = reader.octet()
    if flags & 1:
        raise PacketError(MALFORMED, "the reserved flag of CONNECT is set")
    keep_alive_s = reader.two()
    properties = read_properties(reader, 1) if version == V5 else NO_PROPERTIES
    client_id = reader.text()
    will_qos = flags >> 3 & 3
    will: Will | None = None
    if flags & 4:
        if will_qos == 3:
            raise PacketError(MALFORMED, "a will with QoS 3")
        will_properties = read_properties(reader, WILL) if version == V5 else NO_PROPERTIES
        topic = reader.text().encode()
        will = Will(topic, reader.binary(), will_qos, flags & 0x20 != 0, will_properties)
    elif flags & 0x38:
        raise PacketError(MALFORMED, "flags of a will without a will")
    user = reader.text() if flags & 0x80 else None
    if flags & 0x40 and user is None and version == V311:
        raise PacketError(MALFORMED, "a password without a user name")
    password = reader.binary() if flags & 0x40 else None
    reader.finish()
    return Connect(version, client_id, flags & 2 != 0, keep_alive_s, properties, will, user, password)


def read_publish_properties(octets: bytes) -> dict[int, Any]:
    """Read a publish's properties. Raises: PacketError 0x81, 0x82; 0x90 for an empty or wildcard response topic."""
    size = varint(len(octets))
    properties = read_properties(Reader(size + octets, 0, len(size) + len(octets)), 3)
    response = properties.get(RESPONSE_TOPIC)
    if response is not None and (not response or "+" in response or "#" in response):
        raise PacketError(TOPIC_INVALID, "a response topic that is empty or has a wildcard")
    return properties


def read_subscribe(reader: Reader, version: int) -> Subscribe:
    """Read a SUBSCRIBE packet. Raises: PacketError 0x81, 0x82."""
    packet_id = _packet_id(reader)
    properties = read_properties(reader, 8) if version == V5 else NO_PROPERTIES
    subscriptions: list[Subscription] = []
    while reader.left:
        topic_filter = filter_of(reader.binary())
        options = reader.octet()
        if options & 3 == 3 or options & (0xC0 if version == V5 else 0xFC):
            raise PacketError(MALFORMED, f"subscription options 0x{options:02x}")
        if options >> 4 == 3:
            raise PacketError(PROTOCOL_ERROR, "retain handling 3")
        if options & 4 and topic_filter.startswith(SHARED):
            raise PacketError(PROTOCOL_ERROR, "no local in a shared subscription")
        subscriptions.append(Subscription(topic_filter, options))
    if not subscriptions:
        raise PacketError(PROTOCOL_ERROR, "a SUBSCRIBE without a filter")
    return Subscribe(packet_id, properties, subscriptions)


def read_unsubscribe(reader: Reader, version: int) -> Unsubscribe:
    """Read an UNSUBSCRIBE packet. Raises: PacketError 0x81, 0x82."""
    packet_id = _packet_id(reader)
    if version == V5:
        read_properties(reader, 10)
    filters: list[str] = []
    while reader.left:
        filters.append(filter_of(reader.binary()))
    if not filters:
        raise PacketError(PROTOCOL_ERROR, "an UNSUBSCRIBE without a filter")
    return Unsubscribe(packet_id, filters)


def read_ack(reader: Reader, version: int, octet: int) -> Acks:
    """Read an acknowledgement; `octet` is the first octet of its packet. Raises: PacketError 0x81, 0x82."""
    packet_id = _packet_id(reader)
    reason_code = 0
    if version == V5 and reader.left:
        reason_code = reader.octet()
        if reader.left:
            read_properties(reader, octet >> 4)
    reader.finish()
    return Acks(octet, [packet_id], reason_code)


def read_disconnect(reader: Reader, version: int) -> Disconnect:
    """Read a DISCONNECT packet. Raises: PacketError 0x81, 0x82."""
    reason_code = 0
    properties: dict[int, Any] = {}
    if version == V5 and reader.left:
        reason_code = reader.octet()
        if reader.left:
            properties = read_properties(reader, 14)
    reader.finish()
    return Disconnect(reason_code, properties.get(SESSION_EXPIRY_S))


def _packet_id(reader: Reader) -> int:
    packet_id = reader.two()
    if not packet_id:
        raise PacketError(MALFORMED, "a packet id of 0")
    return packet_id


# -- packets of the broker ---------------------------------------------------------------------------------------------


def encode_connack(version: int, reason_code: int, *, present: bool, properties: dict[int, Any]) -> bytes:
    """Encode a CONNACK packet, or return b"" if 3.1.1 has no return code for the reason code."""
    flags = b"\x01" if present else b"\x00"
    if version == V5:
        return _packet(0x20, flags + bytes((reason_code,)) + counted(properties))
    code = RETURN_CODES_311.get(reason_code)
    return b"" if code is None else _packet(0x20, flags + bytes((code,)))


def encode_answer(kind: int, version: int, packet_id: int, codes: list[int], reason: str = "") -> bytes:
    """Encode a SUBACK or UNSUBACK packet with a code for each filter; `reason` says why filters were refused."""
    properties = b""
    if version == V5:
        properties = counted({REASON_STRING: reason} if reason else {})
    return _packet(kind, packet_id.to_bytes(2, "big") + properties + bytes(codes))


def encode_disconnect(version: int, reason_code: int, reason: str = "") -> bytes:
    """Encode a DISCONNECT packet, or return b"" in 3.1.1, where the broker only closes the connection."""
    if version != V5:
        return b""
    return _packet(0xE0, bytes((reason_code,)) + counted({REASON_STRING: reason} if reason else {}))


def counted(properties: dict[int, Any]) -> bytes:
    """Encode properties, preceded by their length."""
    octets = encode_properties(properties)
    return varint(len(octets)) + octets


def _packet(kind: int, body: bytes) -> bytes:
    return bytes((kind,)) + varint(len(body)) + body
