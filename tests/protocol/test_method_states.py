"""Every method in every state of connection and channel, and the reply code that the client gets.

The expected outcomes follow the specification, and RabbitMQ where the specification is silent:
section 4.2.3 (frames of class connection on channel 0), 1.4.2.10 and 1.5.2.5 (discarding while closing), 1.1 (reply
codes), 4.2.6 (content follows its method).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import base, commands

from broker.amqp.errors import ChannelError
from broker.amqp.lenient_methods import ACCESS_METHODS
from tests.protocol.recording import (
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    Peer,
    closes,
    header_payload,
    method_frame,
    raw_frame,
)

ZERO = {
    "octet": b"\x00",
    "short": b"\x00\x00",
    "long": b"\x00" * 4,
    "longlong": b"\x00" * 8,
    "shortstr": b"\x00",
    "longstr": b"\x00" * 4,
    "table": b"\x00" * 4,
}
# Arguments for a state; every other method is sent with zeros and empty strings.
ARGUMENTS: dict[str, base.Frame] = {
    "Connection.StartOk": commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"),
    "Connection.TuneOk": commands.Connection.TuneOk(2047, 131072, 60),
    "Connection.Open": commands.Connection.Open("/"),
}
# Methods that a client may send on an open channel; only servers send a channel's other methods.
FOR_THE_SESSION = set(
    """Channel.Flow Exchange.Declare Exchange.Delete Exchange.Bind Exchange.Unbind Queue.Declare Queue.Bind Queue.Purge
    Queue.Delete Queue.Unbind Basic.Qos Basic.Consume Basic.Cancel Basic.Get Basic.Ack Basic.Reject Basic.RecoverAsync
    Basic.Recover Basic.Nack Tx.Select Tx.Commit Tx.Rollback Confirm.Select Access.Request""".split()
)
INDEX: dict[int, type[base.Frame]] = commands.INDEX_MAPPING | ACCESS_METHODS
METHODS = {method.name: method for method in INDEX.values()}
# Methods of other dialects: two methods and a class that never existed, file.qos, and class 0.
STRANGERS = {
    "Access.99": (30, 99),
    "Basic.99": (60, 99),
    "Class.99": (99, 10),
    "File.Qos": (70, 10),
    "0.0": (0, 0),
}
NAMES = sorted(METHODS) + sorted(STRANGERS)


def method_payload(name: str) -> bytes:
    """Return a well-formed payload of a method."""
    if name in STRANGERS:
        return struct.pack(">HH", *STRANGERS[name])
    method = METHODS[name]
    octets = struct.pack(">I", method.index)
    if name in ARGUMENTS:
        return octets + ARGUMENTS[name].marshal()
    bits = False
    for field in method.attributes():
        kind = method.amqp_type(field)
        if kind != "bit":
            octets += ZERO[kind]
        elif not bits:
            octets += b"\x00"
        bits = kind == "bit"
    return octets


def ids_of(name: str) -> tuple[int, int]:
    """Return the class and method ids of a method."""
    ids: tuple[int, int] = struct.unpack_from(">HH", method_payload(name))
    return ids


# ---- the states ------------------------------------------------------------------------------------------------------


def connection_in(state: str) -> Callable[[], Peer]:
    """Return a function that brings a connection into a state of the handshake."""
    return lambda: Peer().log_in(until=state)


def connection_closing() -> Peer:
    """Return a peer whose connection the broker is closing, after a frame of an unknown type."""
    peer = Peer().log_in().open_channel()
    assert closes(peer.say(raw_frame(5, 0, b""))) != []
    return peer


def connection_closed() -> Peer:
    """Return a peer whose connection is closed."""
    peer = Peer().log_in()
    peer.say(commands.Connection.Close(200, "bye", 0, 0))
    assert peer.connection.finished
    return peer


def channel_open() -> Peer:
    """Return a peer with channel 1."""
    return Peer().log_in().open_channel()


def channel_awaiting_header() -> Peer:
    """Return a peer that owes the content header of a publish."""
    peer = channel_open()
    assert peer.say(commands.Basic.Publish(), channel=1) == []
    return peer


def channel_awaiting_body() -> Peer:
    """Return a peer that owes the body of a publish."""
    peer = channel_awaiting_header()
    assert peer.say(raw_frame(FRAME_HEADER, 1, header_payload(10))) == []
    return peer


def channel_closing() -> Peer:
    """Return a peer whose channel 1 the broker is closing."""
    peer = channel_open()
    peer.session.raises["Queue.Purge"] = ChannelError(404, "no queue 'q' in vhost '/'")
    assert closes(peer.say(commands.Queue.Purge(queue="q"), channel=1)) == [
        (1, 404, "NOT_FOUND - no queue 'q' in vhost '/'")
    ]
    return peer


# ---- outcomes: ("close", code, text) of the connection, ("reply", methods), or ("session",) --------------------------

Outcome = tuple[Any, ...]
NOTHING: Outcome = ("reply", [])


def reply(*names: str) -> Outcome:
    """Return the outcome of these reply methods."""
    return ("reply", list(names))


def expect_on_channel_0(state: str) -> Callable[[str], Outcome]:
    """Return the outcome of each method on channel 0: 504 unless the state expects the method."""
    awaited = {
        "starting": {"Connection.StartOk": reply("Connection.Tune")},
        "tuning": {"Connection.TuneOk": NOTHING},
        "opening": {"Connection.Open": reply("Connection.OpenOk")},
        "running": {"Connection.UpdateSecret": reply("Connection.UpdateSecretOk")},
    }[state] | {"Connection.Close": reply("Connection.CloseOk")}

    def expected(name: str) -> Outcome:
        if name in STRANGERS:
            return ("close", 540, "NOT_IMPLEMENTED - unknown method")
        unexpected = ("close", 504, f"CHANNEL_ERROR - unexpected method in connection state {state}")
        return awaited.get(name, unexpected)

    return expected


def expect_while_closing(name: str) -> Outcome:
    """Expect that everything but close and close-ok is discarded."""
    return reply("Connection.CloseOk") if name == "Connection.Close" else NOTHING


def expect_nothing(_: str) -> Outcome:
    """Expect that nothing is processed any more."""
    return NOTHING


def expect_too_early(_: str) -> Outcome:
    """Expect that no channel but 0 exists before the connection is open."""
    return ("close", 505, "UNEXPECTED_FRAME - type 1, ")


def expect_unopened(name: str) -> Outcome:
    """Expect that a channel must start with channel.open."""
    if name == "Channel.Open":
        return reply("Channel.OpenOk")
    if name in STRANGERS:
        return ("close", 540, "NOT_IMPLEMENTED - unknown method")
    return ("close", 504, "CHANNEL_ERROR - expected 'channel.open'")


def expect_open(name: str) -> Outcome:
    """Expect that the session gets client methods; others are 503, and unknown ones 540."""
    if name in FOR_THE_SESSION:
        return ("session",)
    if name in STRANGERS:
        return ("close", 540, "NOT_IMPLEMENTED - unknown method")
    return {
        "Basic.Publish": NOTHING,
        "Channel.Close": reply("Channel.CloseOk"),
        "Channel.Open": ("close", 504, "CHANNEL_ERROR - second 'channel.open' seen"),
    }.get(name, ("close", 503, "COMMAND_INVALID - unimplemented method"))


def expect_awaiting_header(_: str) -> Outcome:
    """Expect that a method between a publish and its content is refused."""
    text = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
    return ("close", 505, text)


def expect_awaiting_body(_: str) -> Outcome:
    """Expect that a method between a content header and its body is refused."""
    return ("close", 505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead")


def expect_channel_closing(name: str) -> Outcome:
    """Expect that everything but open, close and close-ok is discarded."""
    return {
        "Channel.Close": reply("Channel.CloseOk"),
        "Channel.Open": ("close", 504, "CHANNEL_ERROR - second 'channel.open' seen"),
    }.get(name, NOTHING)


HANDSHAKE = ("starting", "tuning", "opening")
SITUATIONS: dict[str, tuple[Callable[[], Peer], int, Callable[[str], Outcome]]] = {
    **{
        f"{state}, channel 0": (connection_in(state), 0, expect_on_channel_0(state))
        for state in (*HANDSHAKE, "running")
    },
    "closing, channel 0": (connection_closing, 0, expect_while_closing),
    "closed, channel 0": (connection_closed, 0, expect_nothing),
    **{f"{state}, channel 1": (connection_in(state), 1, expect_too_early) for state in HANDSHAKE},
    "closing, channel 1": (connection_closing, 1, expect_nothing),
    "closed, channel 1": (connection_closed, 1, expect_nothing),
    "running, channel 1 not open": (connection_in("running"), 1, expect_unopened),
    "running, channel 1 open": (channel_open, 1, expect_open),
    "running, channel 1 awaits a content header": (channel_awaiting_header, 1, expect_awaiting_header),
    "running, channel 1 awaits a body": (channel_awaiting_body, 1, expect_awaiting_body),
    "running, channel 1 closing": (channel_closing, 1, expect_channel_closing),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_method_in_state(situation: str, name: str) -> None:
    """Every method in every state has the outcome of the specification."""
    enter, channel, expected = SITUATIONS[situation]
    peer = enter()
    seen = len(peer.events)
    outcome = expected(name)

    answers = peer.say(raw_frame(FRAME_METHOD, channel, method_payload(name)))

    told = [event[2] for event in peer.events[seen:] if event[0] == "method"]
    assert told == ([name] if outcome[0] == "session" else [])
    assert peer.session.crashes == []
    if outcome[0] == "close":
        _, code, text = outcome
        ((number, close),) = answers
        assert (number, type(close)) == (0, commands.Connection.Close)
        assert close.reply_code == code
        assert close.reply_text.startswith(text)
        # A reply code that is about a method names it (section 1.4.2.10).
        if code in (503, 504, 540):
            assert (close.class_id, close.method_id) == ids_of(name)
        assert peer.connection.closing
        assert peer.events[-1] == ("closed",)
    else:
        names = outcome[1] if outcome[0] == "reply" else []
        assert [(number, answer.name) for number, answer in answers] == [(channel, each) for each in names]


def test_every_method_is_sent() -> None:
    """The table has the 64 methods of 0-9-1 with RabbitMQ's extensions, and class access."""
    assert len(METHODS) == len(INDEX) == 66
    assert {"Basic.Nack", "Confirm.Select", "Connection.UpdateSecret", "Connection.Blocked", "Tx.Commit"} <= set(
        METHODS
    )
    assert set(METHODS) >= FOR_THE_SESSION


@pytest.mark.parametrize("name", NAMES)
def test_method_instead_of_the_protocol_header(name: str) -> None:
    """Without a protocol header nothing is a frame: the answer is our header, and the connection ends."""
    peer = Peer()
    assert peer.say(raw_frame(FRAME_METHOD, 0, method_payload(name))) == [(0, PROTOCOL_HEADER)]
    assert peer.connection.finished
    assert peer.events == [("closed",)]


def test_closing_ends_with_close_ok() -> None:
    """After close-ok the connection is finished and sends nothing more."""
    peer = connection_closing()
    assert peer.say(commands.Connection.CloseOk()) == []
    assert peer.connection.finished


def test_closing_channel_is_gone_with_close_ok() -> None:
    """After close-ok the channel number is free; before, an open of it is an error."""
    peer = channel_closing()
    peer.say(commands.Channel.CloseOk(), channel=1)
    peer.open_channel(1)
    other = channel_closing()
    text = "CHANNEL_ERROR - second 'channel.open' seen"
    assert closes(other.say(commands.Channel.Open(), channel=1)) == [(0, 504, text)]


def test_crossing_closes() -> None:
    """If both sides send close, the client gets close-ok, and its own close-ok ends the channel."""
    peer = channel_closing()
    ((number, answer),) = peer.say(commands.Channel.Close(200, "", 0, 0), channel=1)
    assert (number, answer.name) == (1, "Channel.CloseOk")
    peer.say(commands.Channel.CloseOk(), channel=1)
    peer.open_channel(1)


def test_soft_error_leaves_the_other_channels() -> None:
    """An error that closes a channel leaves the other channels open."""
    peer = channel_open().open_channel(2)
    peer.session.raises["Queue.Purge"] = ChannelError(404, "no queue 'q' in vhost '/'")
    together = method_frame(1, commands.Queue.Purge(queue="q")) + method_frame(2, commands.Basic.Qos())
    assert closes(peer.say(together)) == [(1, 404, "NOT_FOUND - no queue 'q' in vhost '/'")]
    assert [event[:3] for event in peer.events[-2:]] == [("channel closed", 1), ("method", 2, "Basic.Qos")]
