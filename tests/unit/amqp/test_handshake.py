"""The handshake: connection.start is encoded once, and equal client properties are stored once."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from broker.amqp.codec import decode_method, encode_method
from broker.amqp.errors import ConnectionFault
from broker.amqp.handshake import CAPABILITIES, ConnectionLimits, start, tune

PROPERTIES: dict[str, Any] = {
    "product": "a client",
    "capabilities": {"basic.nack": True, "connection.blocked": False},
}
METHOD_AT = 7  # after the head of the frame


def start_ok(properties: dict[str, Any], response: str = "\0guest\0guest") -> bytes:
    """Return the payload of a connection.start-ok."""
    method = commands.Connection.StartOk(properties, "PLAIN", response, "en_US")
    return encode_method(0, method)[METHOD_AT:-1]


def test_every_client_gets_the_same_start() -> None:
    """connection.start is that of the specification each time, and each listener has its own mechanisms."""
    ours: dict[str, Any] = {"product": "SlotMQ", "version": "1"}
    properties: Any = {**ours, "capabilities": CAPABILITIES}
    expected = commands.Connection.Start(server_properties=properties, mechanisms="PLAIN EXTERNAL", locales="en_US")
    assert start(ours, ["PLAIN", "EXTERNAL"]) == encode_method(0, expected)
    assert start(ours, ["PLAIN", "EXTERNAL"]) is start(dict(ours), ("PLAIN", "EXTERNAL"))
    assert b"EXTERNAL" not in start(ours, ["PLAIN"])


def test_tune_proposes_the_limits_of_its_listener() -> None:
    """Each listener proposes its own limits."""
    for frame_max_bytes in (131072, 8192, 131072):
        limits = ConnectionLimits(frame_max_bytes=frame_max_bytes)
        proposed = decode_method(tune(limits)[METHOD_AT:-1])
        assert isinstance(proposed, commands.Connection.Tune)
        assert (proposed.channel_max, proposed.frame_max, proposed.heartbeat) == (2047, frame_max_bytes, 60)


def test_clients_of_one_kind_share_their_properties() -> None:
    """Clients that send equal octets share one properties object, but each has its own response."""
    first, second = (decode_method(start_ok(PROPERTIES, response)) for response in ("\0a\0one", "\0b\0two"))
    other = decode_method(start_ok({**PROPERTIES, "connection_name": "mine"}))
    assert isinstance(first, commands.Connection.StartOk) and isinstance(second, commands.Connection.StartOk)
    assert isinstance(other, commands.Connection.StartOk)
    assert first.client_properties == PROPERTIES
    assert first.client_properties is second.client_properties
    assert (first.response, second.response) == ("\0a\0one", "\0b\0two")
    assert other.client_properties == {**PROPERTIES, "connection_name": "mine"}


@pytest.mark.parametrize("cut_bytes", range(1, len(start_ok(PROPERTIES)) - 3))
def test_a_start_ok_that_is_cut_short_is_refused(cut_bytes: int) -> None:
    """A start-ok that is cut anywhere is refused as a malformed frame, each time."""
    payload = start_ok(PROPERTIES)[:-cut_bytes]
    for _ in range(2):
        with pytest.raises(ConnectionFault) as refused:
            decode_method(payload)
        assert refused.value.reply_code == 502
