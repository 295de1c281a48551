"""A client's connection as a value: frames in, methods with their contents and frames out."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from broker.amqp.client import ClientConnection, ClientState, Received
from broker.amqp.codec import content_frames, decode_method, encode_method
from broker.amqp.framing import FRAME_METHOD, HEARTBEAT, FrameCutter
from broker.amqp.handshake import PROTOCOL_HEADER
from broker.amqp.header_edit import encode_header

DELIVER = commands.Basic.Deliver("tag", 1, False, "", "key")
RETURN = commands.Basic.Return(312, "NO_ROUTE", "", "key")
LARGE = bytes(range(256)) * 400


def frames(channel: int, method: base.Frame, body: bytes | None = None, frame_max_bytes: int = 0) -> list[bytes]:
    """Return the frames of a method, and of its content if it has a body."""
    found = [encode_method(channel, method)]
    if body is not None:
        octets = b"".join(content_frames(channel, encode_header({}, len(body)), body, frame_max_bytes))
        cut = 8 + int.from_bytes(octets[3:7], "big")
        found += [octets[:cut], octets[cut:]] if body else [octets]
    return found


def sent(client: ClientConnection) -> list[base.Frame]:
    """Return the methods that the client has sent."""
    cutter = FrameCutter(1 << 17)
    cutter.feed(b"".join(client.take_output()).removeprefix(PROTOCOL_HEADER))
    return [decode_method(payload) for kind, _, payload, _ in cutter.frames() if kind == FRAME_METHOD]


def opened(channels: int = 2, tune: tuple[int, int, int] = (0, 4096, 20), **options: Any) -> ClientConnection:
    """Return a connection with open channels."""
    client = ClientConnection("v", ("ann", "secret"), properties={}, channels=channels, **options)
    answers = [commands.Connection.Start(mechanisms="PLAIN"), commands.Connection.Tune(*tune)]
    for answer in (*answers, commands.Connection.OpenOk()):
        assert client.feed(encode_method(0, answer)) == []
    for channel in range(1, channels + 1):
        assert client.state is ClientState.OPENING
        assert client.feed(encode_method(channel, commands.Channel.OpenOk())) == []
    assert client.state is ClientState.OPEN
    return client


@pytest.mark.parametrize(("asked", "offered", "agreed"), [(30, 20, 20), (10, 20, 10), (10, 0, 10), (0, 20, 0)])
def test_limits_are_the_lower_ones(asked: int, offered: int, agreed: int) -> None:
    """The smaller frame and the shorter heartbeat hold; no heartbeat stays none."""
    client = opened(tune=(0, 4096, offered), heartbeat_s=asked)
    assert (client.frame_max_bytes, client.heartbeat_s) == (4096, agreed)
    _start, tune, *_ = sent(client)
    assert isinstance(tune, commands.Connection.TuneOk)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2, 4096, agreed)


@pytest.mark.parametrize("piece_bytes", [1, 7, 50_000, 1 << 20])
def test_contents_of_several_channels_arrive_among_each_other(piece_bytes: int) -> None:
    """Each is complete with its last frame, however the octets are cut, and empty ones with their header."""
    first, second = frames(1, DELIVER, LARGE), frames(2, RETURN, b"back")
    blocked = encode_method(0, commands.Connection.Blocked("low"))
    mixed = [first[0], second[0], second[1], HEARTBEAT, first[1], second[2], blocked, first[2]]
    octets = b"".join([*mixed, *frames(1, DELIVER, b"")])
    client, found = opened(), list[Received]()
    for at in range(0, len(octets), piece_bytes):
        found += client.feed(octets[at : at + piece_bytes])
    assert [(one.channel, type(one.method), one.body) for one in found] == [
        (2, commands.Basic.Return, b"back"), (1, commands.Basic.Deliver, LARGE), (1, commands.Basic.Deliver, b"")
    ]  # fmt: skip
    assert [one.header for one in found] == [encode_header({}, size) for size in (4, len(LARGE), 0)]
    assert (client.blocked, client.failure) == ("low", "")


@pytest.mark.parametrize(
    ("octets", "failure"),
    [
        (frames(1, DELIVER, b"12345")[1], "UNEXPECTED_FRAME"),
        (b"".join([*frames(1, DELIVER, b"12345")[:2], frames(1, DELIVER, b"123456")[2]]), "UNEXPECTED_FRAME"),
        (b"".join([*frames(1, DELIVER), *frames(1, DELIVER)]), "Basic.Deliver within a content"),
        (b"".join(frames(1, DELIVER, bytes(1001))), "a message of 1001 bytes"),
        (b"\1\0\1\0\0\0\4\0\x3c\0\xff\xce", "NOT_IMPLEMENTED"),
    ],
)
def test_a_broken_frame_ends_the_connection_after_the_good_ones(octets: bytes, failure: str) -> None:
    """Frames before it are returned, and nothing after it."""
    client = opened(max_message_bytes=1000)
    ack = encode_method(1, commands.Basic.Ack(1))
    assert [type(one.method) for one in client.feed(ack + octets + ack)] == [commands.Basic.Ack]
    assert client.state is ClientState.CLOSED
    assert client.failure.startswith("a broken frame: ")
    assert failure in client.failure


@pytest.mark.parametrize(
    ("octets", "failure"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "it does not speak AMQP 0-9-1"),
        (b"AMQP\0\1\0\0", "it does not speak AMQP 0-9-1"),
        (encode_method(0, commands.Connection.Start(mechanisms="EXTERNAL")), "PLAIN is not offered, only EXTERNAL"),
        (encode_method(0, commands.Connection.OpenOk()), "Connection.OpenOk is not expected now"),
    ],
)
def test_what_greets_otherwise_is_no_broker(octets: bytes, failure: str) -> None:
    """The password is not sent to it."""
    client = ClientConnection("v", ("ann", "secret"), properties={})
    assert client.feed(octets) == []
    assert failure in client.failure
    assert client.take_output() == [PROTOCOL_HEADER]


def test_closes_are_answered_and_a_channel_opens_again() -> None:
    """A closed channel forgets its content; the answer to our close comes after what was on its way."""
    client = opened()
    sent(client)
    refused = commands.Channel.Close(404, "NOT_FOUND", 0, 0)
    again = [refused, commands.Channel.OpenOk()]
    octets = [*frames(1, DELIVER, b"cut")[:2], *(encode_method(1, method) for method in again)]
    methods = [type(one.method) for one in client.feed(b"".join([*octets, *frames(1, DELIVER, b"whole")]))]
    assert methods == [commands.Channel.Close, commands.Channel.OpenOk, commands.Basic.Deliver]
    client.close("done")
    late = encode_method(1, commands.Basic.Ack(1)) + encode_method(0, commands.Connection.CloseOk())
    assert [type(one.method) for one in client.feed(late)] == [commands.Basic.Ack, commands.Connection.CloseOk]
    assert [type(method) for method in sent(client)] == [commands.Channel.CloseOk, commands.Connection.Close]
    assert client.state is ClientState.CLOSED


def test_silence_is_noticed_after_two_intervals() -> None:
    """Any octet counts as a sign of life."""
    client = opened()
    assert all(client.beat() for _ in range(5))
    assert not client.beat()
    client.feed(HEARTBEAT)
    assert client.beat()
