"""Decode and encode the properties of MQTT 5 packets, as the table PROPERTIES defines them.

Source: MQTT 5.0, section 2.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import MALFORMED, PROTOCOL_ERROR
from broker.mqtt.wire import Reader, binary, text, varint

FLAG: Final = 0  # an octet that is 0 or 1
TWO: Final = 1
FOUR: Final = 2
VARINT: Final = 3
TEXT: Final = 4
BINARY: Final = 5
PAIR: Final = 6

READ: Final[dict[int, Callable[[Reader], Any]]] = {
    FLAG: Reader.octet,
    TWO: Reader.two,
    FOUR: Reader.four,
    VARINT: Reader.varint,
    TEXT: Reader.text,
    BINARY: Reader.binary,
    PAIR: lambda reader: (reader.text(), reader.text()),
}
ENCODE: Final[dict[int, Callable[[Any], bytes]]] = {
    FLAG: lambda value: bytes((value,)),
    TWO: lambda value: int(value).to_bytes(2, "big"),
    FOUR: lambda value: int(value).to_bytes(4, "big"),
    VARINT: varint,
    TEXT: text,
    BINARY: binary,
}

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY_S: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_S: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM: Final = 0x17
WILL_DELAY_S: Final = 0x18
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_QOS: Final = 0x24
MAXIMUM_PACKET_SIZE: Final = 0x27

# The types of packets that a client sends. WILL stands for the will in a CONNECT.
WILL: Final = 0
CONNECT: Final = 1
PUBLISH: Final = 3
ACKS: Final = frozenset((4, 5, 6, 7))
SUBSCRIBE: Final = 8
UNSUBSCRIBE: Final = 10
DISCONNECT: Final = 14
AUTH: Final = 15


class Property(NamedTuple):
    """The type of a property's value, and the types of a client's packets that may contain it."""

    kind: int
    packets: frozenset[int]


MESSAGE: Final = frozenset((WILL, PUBLISH))
BROKER_ONLY: Final[frozenset[int]] = frozenset()

PROPERTIES: Final[dict[int, Property]] = {
    PAYLOAD_FORMAT: Property(FLAG, MESSAGE),
    MESSAGE_EXPIRY_S: Property(FOUR, MESSAGE),
    CONTENT_TYPE: Property(TEXT, MESSAGE),
    RESPONSE_TOPIC: Property(TEXT, MESSAGE),
    CORRELATION_DATA: Property(BINARY, MESSAGE),
    SUBSCRIPTION_IDENTIFIER: Property(VARINT, frozenset((SUBSCRIBE,))),
    SESSION_EXPIRY_S: Property(FOUR, frozenset((CONNECT, DISCONNECT))),
    ASSIGNED_CLIENT_ID: Property(TEXT, BROKER_ONLY),
    SERVER_KEEP_ALIVE: Property(TWO, BROKER_ONLY),
    AUTHENTICATION_METHOD: Property(TEXT, frozenset((CONNECT, AUTH))),
    AUTHENTICATION_DATA: Property(BINARY, frozenset((CONNECT, AUTH))),
    REQUEST_PROBLEM: Property(FLAG, frozenset((CONNECT,))),
    WILL_DELAY_S: Property(FOUR, frozenset((WILL,))),
    0x19: Property(FLAG, frozenset((CONNECT,))),  # Request Response Information
    0x1A: Property(TEXT, BROKER_ONLY),  # Response Information
    0x1C: Property(TEXT, BROKER_ONLY),  # Server Reference
    REASON_STRING: Property(TEXT, ACKS | {DISCONNECT, AUTH}),
    RECEIVE_MAXIMUM: Property(TWO, frozenset((CONNECT,))),
    TOPIC_ALIAS_MAXIMUM: Property(TWO, frozenset((CONNECT,))),
    TOPIC_ALIAS: Property(TWO, frozenset((PUBLISH,))),
    MAXIMUM_QOS: Property(FLAG, BROKER_ONLY),
    RETAIN_AVAILABLE: Property(FLAG, BROKER_ONLY),
    USER_PROPERTY: Property(PAIR, MESSAGE | ACKS | {CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH}),
    MAXIMUM_PACKET_SIZE: Property(FOUR, frozenset((CONNECT,))),
    0x28: Property(FLAG, BROKER_ONLY),  # Wildcard Subscription Available
    0x29: Property(FLAG, BROKER_ONLY),  # Subscription Identifiers Available
    0x2A: Property(FLAG, BROKER_ONLY),  # Shared Subscription Available
}
NOT_ZERO: Final = frozenset((SUBSCRIPTION_IDENTIFIER, RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE))


def read_properties(reader: Reader, packet: int) -> dict[int, Any]:
    """Read the properties of a packet; `packet` is its type.

    Shapes: the value of USER_PROPERTY is a list of pairs in their order; every other property occurs once.
    Raises: PacketError 0x81 for malformed properties, 0x82 for properties that are not allowed.
    """
    size = reader.varint()
    if size > reader.left:
        raise PacketError(MALFORMED, "properties that end after their packet")
    end = reader.left - size
    values: dict[int, Any] = {}
    while reader.left > end:
        identifier = reader.varint()
        known = PROPERTIES.get(identifier)
        if known is None:
            raise PacketError(MALFORMED, f"an unknown property, 0x{identifier:02x}")
        if packet not in known.packets:
            raise PacketError(PROTOCOL_ERROR, f"property 0x{identifier:02x} in a packet that cannot have it")
        value = READ[known.kind](reader)
        if identifier == USER_PROPERTY:
            values.setdefault(USER_PROPERTY, []).append(value)
            continue
        if identifier in values:
            raise PacketError(PROTOCOL_ERROR, f"property 0x{identifier:02x} twice")
        if known.kind == FLAG and value > 1:
            raise PacketError(PROTOCOL_ERROR, f"property 0x{identifier:02x} is {value}, neither 0 nor 1")
        if value == 0 and identifier in NOT_ZERO:
            raise PacketError(PROTOCOL_ERROR, f"property 0x{identifier:02x} is 0")
        values[identifier] = value
    if reader.left != end:
        raise PacketError(MALFORMED, "a property that ends after the properties")
    return values


def encode_properties(values: dict[int, Any]) -> bytes:
    """Encode properties without their length, in the order of `values`."""
    pieces: list[bytes] = []
    for identifier, value in values.items():
        kind = PROPERTIES[identifier].kind
        if kind == PAIR:
            for key, pair_value in value:
                pieces += (bytes((identifier,)), text(key), text(pair_value))
            continue
        pieces += (bytes((identifier,)), ENCODE[kind](value))
    return b"".join(pieces)
