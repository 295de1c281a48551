"""The handshake: what the broker offers, its limits for a connection, and the checks of a client's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pamqp import commands

from broker.amqp.codec import encode_method
from broker.amqp.errors import ConnectionFault

MECHANISMS: Final = ("PLAIN", "AMQPLAIN")
LOCALES: Final = "en_US"
OFFERS_MAX: Final = 8  # distinct encoded offers in the cache; a broker has one per kind of listener

# The extensions of AMQP 0-9-1 that this broker announces; clients rely on each.
CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# AMQP 0-9 clients send this header (its layout differs from 0-9-1's); RabbitMQ accepts them as 0-9-1.
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
HEADERS_SERVED: Final = (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9)
PROTOCOL_HEADER_BYTES: Final = 8


def start(server_properties: Mapping[str, Any], mechanisms: Sequence[str] = MECHANISMS) -> bytes:
    """Return the frame of a connection.start with the server properties and mechanisms.

    Shapes: the values of `server_properties` are hashable.
    """
    return start_with(tuple(server_properties.items()), tuple(mechanisms))


@lru_cache(OFFERS_MAX)
def start_with(server_properties: tuple[tuple[str, Any], ...], mechanisms: tuple[str, ...]) -> bytes:
    """Return the cached frame of `start`."""
    properties = {**dict(server_properties), "capabilities": CAPABILITIES}
    method = commands.Connection.Start(server_properties=properties, mechanisms=" ".join(mechanisms), locales=LOCALES)
    return encode_method(0, method)


@lru_cache(OFFERS_MAX)
def tune(limits: ConnectionLimits) -> bytes:
    """Return the frame of a connection.tune that proposes our limits."""
    return encode_method(0, commands.Connection.Tune(limits.channel_max, limits.frame_max_bytes, limits.heartbeat_s))


@dataclass(frozen=True, slots=True, eq=False)  # one object for many connections: hashed by its identity
class ConnectionLimits:
    """The limits of a connection.

    A `channel_max` of 0 means the maximum of the protocol, 65535. `consumers_max` is per channel; 0 means no limit.
    """

    frame_max_bytes: int = 131072
    frame_min_bytes: int = 4096
    initial_frame_max_bytes: int = 8192
    channel_max: int = 2047
    heartbeat_s: int = 60
    max_message_size_bytes: int = 134217728
    tx_max_bytes: int = 67108864
    unsent_max_bytes: int = 1 << 19
    consumers_max: int = 0
    table_depth_max: int = 16
    table_entries_max: int = 4096

    def __post_init__(self) -> None:
        """Raise ValueError for limits that contradict each other or the protocol."""
        if not 0 < self.frame_min_bytes <= self.frame_max_bytes:
            raise ValueError("frame_max_bytes must be at least frame_min_bytes, and both above 0")
        if not 0 <= self.channel_max <= 65535 or not 0 <= self.heartbeat_s <= 65535:
            raise ValueError("channel_max and heartbeat_s must be within 0 and 65535")


def has_supported_header(received: bytes) -> bool | None:
    """Return whether the connection begins with a supported protocol header, or None if more octets are needed."""
    begun = received[:PROTOCOL_HEADER_BYTES]
    if begun in HEADERS_SERVED:
        return True
    return None if any(header.startswith(begun) for header in HEADERS_SERVED) else False


def check_tune_ok(limits: ConnectionLimits, answer: commands.Connection.TuneOk) -> None:
    """Check that a tune-ok is within our limits; a value of 0 asks for no limit.

    Raises: 530.
    """
    frame_max, channel_max = answer.frame_max, answer.channel_max
    if 0 < frame_max < limits.frame_min_bytes:
        raise out_of_range("frame_max", frame_max, "lower than the minimum", limits.frame_min_bytes)
    if frame_max == 0 or frame_max > limits.frame_max_bytes:
        raise out_of_range("frame_max", frame_max, "higher than the maximum", limits.frame_max_bytes)
    if limits.channel_max and (channel_max == 0 or channel_max > limits.channel_max):
        raise out_of_range("channel_max", channel_max, "higher than the maximum", limits.channel_max)


def out_of_range(name: str, value: int, relation: str, bound: int) -> ConnectionFault:
    """Return the 530 for a negotiated value, in RabbitMQ's words."""
    detail = " (no limit)" if name == "channel_max" and value == 0 else ""
    return ConnectionFault(530, f"negotiated {name} = {value}{detail} is {relation} allowed value ({bound})")


def octets_of(field: Any) -> bytes:
    """Return the octets of a SASL response or a secret.

    pamqp declares such a field as str, but octets that are not UTF-8 are bytes, which compiled code reads only as Any.
    """
    octets: bytes = field.encode() if isinstance(field, str) else field or b""
    return octets
