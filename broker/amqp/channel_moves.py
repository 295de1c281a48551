"""The states of a channel, and its action on each method, as a table."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pamqp import commands

from broker.amqp.codec import METHODS, Method, decode_method, unknown_method
from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import PUBLISH
from broker.amqp.lenient_methods import AccessRequest


class ChannelState(Enum):
    """The state of a channel; a channel number without a Channel is not open."""

    OPEN = "open"
    CLOSING = "closing"  # channel.close sent: all but open, close and close-ok is discarded (section 1.5.2.5)
    CLOSED = "closed"


class ChannelVerdict(Enum):
    """The action of a channel on a method."""

    SESSION = "hand it to the session"
    PUBLISH = "wait for its content"
    CLOSE = "close, and answer close-ok"
    ANSWER = "answer close-ok to a close that crossed ours, and go on waiting for close-ok"
    GONE = "forget the channel"
    SECOND_OPEN = "refuse: 504 second 'channel.open' seen"
    UNIMPLEMENTED = "refuse: 503 unimplemented method"
    DISCARD = "discard"


def index_of(*methods: type[Method]) -> set[bytes]:
    """Return the class and method octets that begin the payloads of these methods."""
    return {method.index.to_bytes(4, "big") for method in methods}


# The methods that a client may send on an open channel. The others travel from server to client only, or belong to
# class connection: RabbitMQ answers both with 503.
CLIENT_METHODS: Final = index_of(
    AccessRequest,
    commands.Channel.Flow,
    commands.Exchange.Declare,
    commands.Exchange.Delete,
    commands.Exchange.Bind,
    commands.Exchange.Unbind,
    commands.Queue.Declare,
    commands.Queue.Bind,
    commands.Queue.Purge,
    commands.Queue.Delete,
    commands.Queue.Unbind,
    commands.Basic.Qos,
    commands.Basic.Consume,
    commands.Basic.Cancel,
    commands.Basic.Get,
    commands.Basic.Ack,
    commands.Basic.Reject,
    commands.Basic.RecoverAsync,
    commands.Basic.Recover,
    commands.Basic.Nack,
    commands.Tx.Select,
    commands.Tx.Commit,
    commands.Tx.Rollback,
    commands.Confirm.Select,
)
NO_METHOD: Final = b"\x00\x00\x00\x00"
(OPEN_METHOD,) = index_of(commands.Channel.Open)
(CLOSE_METHOD,) = index_of(commands.Channel.Close)
(CLOSE_OK_METHOD,) = index_of(commands.Channel.CloseOk)

MOVES: Final[dict[ChannelState, dict[bytes, ChannelVerdict]]] = {
    ChannelState.OPEN: {
        **dict.fromkeys(METHODS, ChannelVerdict.UNIMPLEMENTED),
        **dict.fromkeys(CLIENT_METHODS, ChannelVerdict.SESSION),
        PUBLISH: ChannelVerdict.PUBLISH,
        OPEN_METHOD: ChannelVerdict.SECOND_OPEN,
        CLOSE_METHOD: ChannelVerdict.CLOSE,
    },
    ChannelState.CLOSING: {
        **dict.fromkeys(METHODS, ChannelVerdict.DISCARD),
        OPEN_METHOD: ChannelVerdict.SECOND_OPEN,  # RabbitMQ's answer; otherwise the client would wait forever
        CLOSE_METHOD: ChannelVerdict.ANSWER,
        CLOSE_OK_METHOD: ChannelVerdict.GONE,
    },
    ChannelState.CLOSED: dict.fromkeys(METHODS, ChannelVerdict.DISCARD),
}


def check_open(payload: bytes) -> None:
    """Check the first method on the number of a channel.

    Raises: 504 unless it is channel.open, 540 for a method that does not exist, 502 for one that cannot be decoded.
    """
    if payload[:4] != OPEN_METHOD:
        if payload[:4] not in METHODS:
            raise unknown_method(payload)
        raise ConnectionFault(504, "expected 'channel.open'")
    decode_method(payload)
