"""The broker's part of the handshake: connection.start and connection.tune, encoded once for many clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from pamqp import commands

from broker.amqp.codec import encode_method
from broker.amqp.handshake import ConnectionLimits

__all__ = ["CAPABILITIES", "MECHANISMS", "start", "tune"]

MECHANISMS: Final = ("PLAIN", "AMQPLAIN")
LOCALES: Final = "en_US"
OFFERS_MAX: Final = 8  # distinct offers that are kept encoded; a broker makes one per kind of listener

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


def start(server_properties: Mapping[str, Any], mechanisms: Sequence[str] = MECHANISMS) -> bytes:
    """Return the frame of the connection.start with the server properties and mechanisms.

    Shapes: the values of `server_properties` are hashable.
    """
    return start_with(tuple(server_properties.items()), tuple(mechanisms))


@lru_cache(OFFERS_MAX)
def start_with(server_properties: tuple[tuple[str, Any], ...], mechanisms: tuple[str, ...]) -> bytes:
    """Return the frame of the connection.start with these properties."""
    properties = {**dict(server_properties), "capabilities": CAPABILITIES}
    method = commands.Connection.Start(server_properties=properties, mechanisms=" ".join(mechanisms), locales=LOCALES)
    return encode_method(0, method)


@lru_cache(OFFERS_MAX)
def tune(limits: ConnectionLimits) -> bytes:
    """Return the frame of the connection.tune that proposes our limits."""
    return encode_method(0, commands.Connection.Tune(limits.channel_max, limits.frame_max_bytes, limits.heartbeat_s))
