"""Check frames outside open channels: which methods a connection state expects, and which frames open a channel."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pamqp import commands

from broker.amqp.codec import METHODS, Method, unknown_method
from broker.amqp.errors import ConnectionFault, broken_frame, describe_frame, non_method_frame
from broker.amqp.framing import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD


class ConnectionState(Enum):
    """The state of a connection. Reply texts contain the values, as in RabbitMQ."""

    GREETING = "greeting"  # waiting for the protocol header
    STARTING = "starting"  # connection.start sent
    TUNING = "tuning"  # connection.tune sent
    OPENING = "opening"  # tune-ok received, waiting for connection.open
    RUNNING = "running"
    CLOSING = "closing"  # connection.close sent, waiting for close-ok (section 1.4.2.10)
    CLOSED = "closed"

    __hash__ = object.__hash__  # Enum's own is written in Python


# Members of an Enum are slow to access; compiled code uses these.
GREETING: Final = ConnectionState.GREETING
STARTING: Final = ConnectionState.STARTING
TUNING: Final = ConnectionState.TUNING
OPENING: Final = ConnectionState.OPENING
RUNNING: Final = ConnectionState.RUNNING
CLOSING: Final = ConnectionState.CLOSING
CLOSED: Final = ConnectionState.CLOSED


# The methods that each state expects on channel 0. Others are refused with 504, as in RabbitMQ; CLOSING discards them.
EXPECTED: Final[dict[ConnectionState, tuple[type[Method], type[Method]]]] = {
    ConnectionState.STARTING: (commands.Connection.StartOk, commands.Connection.Close),
    ConnectionState.TUNING: (commands.Connection.TuneOk, commands.Connection.Close),
    ConnectionState.OPENING: (commands.Connection.Open, commands.Connection.Close),
    ConnectionState.RUNNING: (commands.Connection.UpdateSecret, commands.Connection.Close),
    ConnectionState.CLOSING: (commands.Connection.CloseOk, commands.Connection.Close),
}


def expected_kind(state: ConnectionState, payload: bytes) -> type[Method] | None:
    """Return the class of a method on channel 0, or None to discard it. Raises: ConnectionFault if not expected."""
    kind = METHODS.get(payload[:4])
    if kind in EXPECTED[state]:
        return kind
    if state is CLOSING:
        return None
    if kind is None:
        raise unknown_method(payload)
    raise ConnectionFault(504, f"unexpected method in connection state {state.value}")


def opens_channel(state: ConnectionState, kind: int, number: int, payload: bytes) -> bool:
    """Return whether a frame may open its channel; False for a heartbeat, and while the connection closes.

    Raises: 505 for a frame out of sequence, 501 for a frame of an unknown type.
    """
    if kind == FRAME_HEARTBEAT and not payload:
        if number:
            raise ConnectionFault(505, describe_frame(kind, payload))
        return False
    if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
        raise broken_frame(kind, payload, "unknown_frame")
    if state is CLOSING:
        return False
    if number == 0 or state is not RUNNING:
        raise ConnectionFault(505, describe_frame(kind, payload))
    if kind != FRAME_METHOD:
        raise non_method_frame()
    return True
