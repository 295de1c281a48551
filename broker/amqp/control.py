"""Frames outside open channels: the methods of channel 0, as a table of connection states, and all others."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pamqp import commands

from broker.amqp.codec import METHODS, Method, unknown_method
from broker.amqp.errors import ConnectionFault, broken_frame, describe_frame, non_method_frame
from broker.amqp.framing import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD


class ConnectionState(Enum):
    """The state of a connection. The words are RabbitMQ's, because reply texts show them."""

    GREETING = "greeting"  # waits for the protocol header
    STARTING = "starting"  # connection.start sent
    TUNING = "tuning"  # connection.tune sent
    OPENING = "opening"  # tune-ok received, waits for connection.open
    RUNNING = "running"
    CLOSING = "closing"  # connection.close sent: all but close and close-ok is discarded (section 1.4.2.10)
    CLOSED = "closed"

    __hash__ = object.__hash__  # an Enum hashes its name, in Python


# Members of an Enum are slow to access; compiled code uses these.
GREETING: Final = ConnectionState.GREETING
STARTING: Final = ConnectionState.STARTING
TUNING: Final = ConnectionState.TUNING
OPENING: Final = ConnectionState.OPENING
RUNNING: Final = ConnectionState.RUNNING
CLOSING: Final = ConnectionState.CLOSING
CLOSED: Final = ConnectionState.CLOSED


class ControlVerdict(Enum):
    """The action of a connection on a method of channel 0."""

    AUTHENTICATE = "authenticate, and propose limits"
    NEGOTIATE = "take the limits"
    OPEN = "enter the virtual host"
    UPDATE_SECRET = "take a new secret"  # noqa: S105 - a description, not a password
    CLOSE = "close everything, answer close-ok"
    ANSWER = "answer close-ok, and go on waiting for close-ok"
    FINISH = "finish"


AUTHENTICATE: Final = ControlVerdict.AUTHENTICATE
NEGOTIATE: Final = ControlVerdict.NEGOTIATE
OPEN: Final = ControlVerdict.OPEN
UPDATE_SECRET: Final = ControlVerdict.UPDATE_SECRET
ANSWER: Final = ControlVerdict.ANSWER
FINISH: Final = ControlVerdict.FINISH


# A method that a state does not list is refused with 504, as RabbitMQ does; CLOSING discards it.
MOVES: Final[dict[ConnectionState, dict[type[Method], ControlVerdict]]] = {
    ConnectionState.STARTING: {
        commands.Connection.StartOk: ControlVerdict.AUTHENTICATE,
        commands.Connection.Close: ControlVerdict.CLOSE,
    },
    ConnectionState.TUNING: {
        commands.Connection.TuneOk: ControlVerdict.NEGOTIATE,
        commands.Connection.Close: ControlVerdict.CLOSE,
    },
    ConnectionState.OPENING: {
        commands.Connection.Open: ControlVerdict.OPEN,
        commands.Connection.Close: ControlVerdict.CLOSE,
    },
    ConnectionState.RUNNING: {
        commands.Connection.UpdateSecret: ControlVerdict.UPDATE_SECRET,
        commands.Connection.Close: ControlVerdict.CLOSE,
    },
    ConnectionState.CLOSING: {
        commands.Connection.Close: ControlVerdict.ANSWER,
        commands.Connection.CloseOk: ControlVerdict.FINISH,
    },
}


def move_of(state: ConnectionState, payload: bytes) -> ControlVerdict | None:
    """Return the action on a method on channel 0, None to discard it. Raises: 504 for a method unexpected in the state,
    540 for an unknown one.
    """
    kind = METHODS.get(payload[:4])
    move = MOVES[state].get(kind) if kind is not None else None
    if move is None and state is not CLOSING:
        if kind is None:
            raise unknown_method(payload)
        raise ConnectionFault(504, f"unexpected method in connection state {state.value}")
    return move


def opens_channel(state: ConnectionState, kind: int, number: int, payload: bytes) -> bool:
    """Return whether a frame may open its channel: a heartbeat, or any frame while the connection closes, does nothing.

    Raises: 505 for a frame out of sequence, 501 for one of an unknown type.
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
