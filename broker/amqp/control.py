"""Channel 0: opening and closing a connection, as a table of states and methods."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from broker.amqp.codec import METHODS, Method, decode_method, unknown_method
from broker.amqp.errors import ConnectionFault, Refused
from broker.amqp.handshake import capabilities_of, check_tune_ok

if TYPE_CHECKING:
    from broker.amqp.connection import Connection


class ConnectionState(Enum):
    """The state of a connection. The words are RabbitMQ's, because reply texts show them."""

    GREETING = "greeting"  # waits for the protocol header
    STARTING = "starting"  # connection.start sent
    TUNING = "tuning"  # connection.tune sent
    OPENING = "opening"  # tune-ok received, waits for connection.open
    RUNNING = "running"
    CLOSING = "closing"  # connection.close sent: all but close and close-ok is discarded (section 1.4.2.10)
    CLOSED = "closed"


class ControlVerdict(Enum):
    """The action of a connection on a method of channel 0."""

    AUTHENTICATE = "authenticate, and propose limits"
    NEGOTIATE = "take the limits"
    OPEN = "enter the virtual host"
    UPDATE_SECRET = "take a new secret"  # noqa: S105 - a description, not a password
    CLOSE = "close everything, answer close-ok"
    ANSWER = "answer close-ok, and go on waiting for close-ok"
    FINISH = "finish"


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


def accept_method(connection: Connection, payload: bytes) -> None:
    """Do what the table lists for a method on channel 0 in the connection's state.

    Raises: 504 for a method that the state does not expect, 540 for one that does not exist, 501 and 502 for one that
    is malformed, and what the session raises.
    """
    kind = METHODS.get(payload[:4])
    move = MOVES[connection.state].get(kind) if kind is not None else None
    if connection.state is ConnectionState.CLOSING and move is None:
        return
    if kind is None:
        raise unknown_method(payload)
    if move is None:
        raise ConnectionFault(504, f"unexpected method in connection state {connection.state.value}")
    if move is ControlVerdict.FINISH:
        connection.drained = True
        connection.finish()
    elif move is ControlVerdict.ANSWER:
        # The client's close crossed ours: answer it, and wait for the answer to ours.
        connection.send(0, commands.Connection.CloseOk())
    else:
        limits = connection.limits
        ACTIONS[move](connection, decode_method(payload, limits.table_depth_max, limits.table_entries_max))


def authenticate(connection: Connection, method: commands.Connection.StartOk) -> None:
    """Accept the user and propose limits, or refuse the client; a held connection waits for its session to decide."""
    connection.client_properties = method.client_properties
    connection.capabilities = capabilities_of(method.client_properties)
    try:
        connection.session.authenticate(method.mechanism, octets_of(method.response))
    except Refused as error:
        connection.refuse(error, method.mechanism)
    else:
        if not connection.held:
            connection.admit()


def negotiate(connection: Connection, method: commands.Connection.TuneOk) -> None:
    """Accept the limits that the client chose within ours."""
    check_tune_ok(connection.limits, method)
    connection.take_limits(method.frame_max, method.channel_max, method.heartbeat)
    connection.state = ConnectionState.OPENING


def enter(connection: Connection, method: commands.Connection.Open) -> None:
    """Open the virtual host, after which channels may be opened."""
    connection.session.open(method.virtual_host)
    connection.state = ConnectionState.RUNNING
    connection.send(0, commands.Connection.OpenOk())


def update_secret(connection: Connection, method: commands.Connection.UpdateSecret) -> None:
    """Accept a new secret."""
    try:
        connection.session.update_secret(octets_of(method.new_secret or ""), method.reason or "")
    except Refused:
        raise ConnectionFault(530, "New secret was refused by one of the backends") from None
    connection.send(0, commands.Connection.UpdateSecretOk())


def close(connection: Connection, _: commands.Connection.Close) -> None:
    """Close everything, and tell the client when it is done."""
    connection.orderly = True
    connection.end_sessions()
    connection.send(0, commands.Connection.CloseOk())
    connection.finish()


def octets_of(text: str | bytes) -> bytes:
    """Return the octets of a long string, which the codec decodes as text where it can."""
    return text.encode() if isinstance(text, str) else text


ACTIONS: Final[dict[ControlVerdict, Callable[[Connection, Any], None]]] = {
    ControlVerdict.AUTHENTICATE: authenticate,
    ControlVerdict.NEGOTIATE: negotiate,
    ControlVerdict.OPEN: enter,
    ControlVerdict.UPDATE_SECRET: update_secret,
    ControlVerdict.CLOSE: close,
}
