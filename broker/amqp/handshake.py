"""The handshake: from the protocol header to the negotiated limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

from pamqp import commands

from broker.amqp.codec import Method
from broker.amqp.connection_limits import ConnectionLimits
from broker.amqp.errors import ConnectionFault

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# What 0-9 clients send (AMQP 0-9 had another layout of this header); RabbitMQ serves them as 0-9-1.
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
HEADERS_SERVED: Final = (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9)
PROTOCOL_HEADER_BYTES: Final = 8

MECHANISMS: Final = ("PLAIN", "AMQPLAIN")
LOCALES: Final = "en_US"
OFFERS_MAX: Final = 8  # distinct offers that are kept encoded; a broker makes one per kind of listener
CLIENTS_MAX: Final = 64  # sets of capabilities that are kept

# Extensions of the specification that this broker has. Clients depend on these, so each is true.
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


def serves(received: bytes) -> bool | None:
    """Return whether the connection begins with a protocol header that we serve, or None if more octets are needed."""
    begun = received[:PROTOCOL_HEADER_BYTES]
    if begun in HEADERS_SERVED:
        return True
    return None if any(header.startswith(begun) for header in HEADERS_SERVED) else False


class Repeated(Method):
    """A method that is encoded once for many clients."""

    @cached_property
    def octets(self) -> bytes:
        """The encoded arguments."""
        return super().marshal()

    def marshal(self) -> bytes:
        """Return the encoded arguments."""
        return self.octets


class Start(Repeated, commands.Connection.Start):
    """The connection.start for every client."""


class Tune(Repeated, commands.Connection.Tune):
    """The connection.tune for every client."""


def start(server_properties: Mapping[str, Any], mechanisms: Sequence[str] = MECHANISMS) -> Start:
    """Return the connection.start with the server properties and mechanisms.

    Shapes: the values of `server_properties` are hashable.
    """
    return start_with(tuple(server_properties.items()), tuple(mechanisms))


@lru_cache(OFFERS_MAX)
def start_with(server_properties: tuple[tuple[str, Any], ...], mechanisms: tuple[str, ...]) -> Start:
    """Return the shared connection.start with these properties."""
    properties = {**dict(server_properties), "capabilities": CAPABILITIES}
    return Start(server_properties=properties, mechanisms=" ".join(mechanisms), locales=LOCALES)


@lru_cache(OFFERS_MAX)
def tune(limits: ConnectionLimits) -> Tune:
    """Return the connection.tune that proposes our limits."""
    return Tune(limits.channel_max, limits.frame_max_bytes, limits.heartbeat_s)


def check_tune_ok(limits: ConnectionLimits, answer: commands.Connection.TuneOk) -> None:
    """Check that a tune-ok is within our limits.

    Raises: 530. A client that asks for no limit (0) where we have one asks for too much; this is not min(0, ours).
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


def capabilities_of(client_properties: Mapping[str, Any]) -> frozenset[str]:
    """Return the capabilities that a client announced as true."""
    announced = client_properties.get("capabilities")
    if not isinstance(announced, dict):
        return frozenset()
    return shared(frozenset([name for name, value in announced.items() if value is True]))


@lru_cache(CLIENTS_MAX)
def shared(capabilities: frozenset[str]) -> frozenset[str]:
    """Return one shared object for equal sets, because most clients announce the same capabilities."""
    return capabilities


def login_response(method: commands.Connection.StartOk) -> bytes:
    """Return the octets of the SASL response.

    pamqp calls it a str, but the codec leaves octets that are not text; compiled code could not read such a field.
    """
    return _octets(method.response)


def new_secret(method: commands.Connection.UpdateSecret) -> bytes:
    """Return the octets of the new secret, as `login_response` does."""
    return _octets(method.new_secret or "")


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
