"""Malformed frames and payloads: the right reply code, and no other effect."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands

from tests.protocol.recording import Peer, closes, method_frame, raw_frame

CLOSE_OK = method_frame(0, commands.Connection.CloseOk())


def test_wrong_end_octet() -> None:
    """A frame that does not end in 0xCE is 501, and nothing after it is read (section 4.2.3)."""
    peer = Peer().log_in().open_channel()
    answers = peer.say(raw_frame(1, 1, b"\x00\x3c\x00\x0a\x00", end=0xCD) + method_frame(1, commands.Basic.Qos()))
    text = "FRAME_ERROR - type 1, all octets = <<0,60,0,10,0>>: {invalid_frame_end_marker,205}"
    assert closes(answers) == [(0, 501, text)]
    assert peer.connection.finished
    assert peer.events[3:] == [("channel closed", 1), ("closed",)]
    assert peer.say(CLOSE_OK) == []


@pytest.mark.parametrize("channel", [0, 1])
def test_wrong_end_octet_of_the_first_publish(channel: int) -> None:
    """A publish that ends in 0 is 501, also before an octet 0xCE and on channel 0."""
    peer = Peer().log_in().open_channel()
    answers = peer.say(raw_frame(1, channel, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00", end=0) + b"\xce")
    text = "FRAME_ERROR - type 1, all octets = <<0,60,0,40,0,0,0,0,0>>: {invalid_frame_end_marker,0}"
    assert closes(answers) == [(0, 501, text)]


@pytest.mark.parametrize("size", [131073, 1 << 31, (1 << 32) - 1])
def test_frame_too_large(size: int) -> None:
    """A frame larger than negotiated is refused at its head, before its payload is buffered."""
    peer = Peer().log_in()
    answers = peer.say(struct.pack(">BHI", 3, 1, size))
    assert closes(answers) == [(0, 501, f"FRAME_ERROR - type 3, all octets = <<>>: {{frame_too_large,{size},131064}}")]
    assert peer.connection.finished
    assert peer.connection.buffered_bytes == 0


def test_frame_of_the_largest_size() -> None:
    """The negotiated size is that of the whole frame; as in RabbitMQ, 8 more octets are tolerated."""
    for size in (131064, 131072):
        peer = Peer().log_in().open_channel()
        answers = peer.say(raw_frame(3, 1, bytes(size)))
        assert closes(answers)[0][1] == 505


@pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 9, 65, 255])
@pytest.mark.parametrize("channel", [0, 1, 2])
def test_unknown_frame_type(kind: int, channel: int) -> None:
    """An unknown frame type is 501, on channel 0, on an open channel and on a closed one."""
    peer = Peer().log_in().open_channel()
    answers = peer.say(raw_frame(kind, channel, b"ab"))
    assert closes(answers) == [(0, 501, f'FRAME_ERROR - type {kind}, all octets = <<"ab">>: unknown_frame')]
    assert peer.say(CLOSE_OK) == []
    assert peer.connection.finished


def test_heartbeat() -> None:
    """A heartbeat is accepted in every state of the handshake and has no answer."""
    for state in ("starting", "tuning", "opening", "running"):
        peer = Peer().log_in(until=state)
        assert peer.say(raw_frame(8, 0, b"")) == []
        assert peer.connection.state.value == state


@pytest.mark.parametrize(
    ("channel", "payload", "code"), [(1, b"", 505), (7, b"", 505), (0, b"x", 501), (1, b"x", 501), (7, b"x", 501)]
)
def test_wrong_heartbeat(channel: int, payload: bytes, code: int) -> None:
    """A heartbeat on a channel other than 0 is 505, as in RabbitMQ; a heartbeat with a payload is 501."""
    peer = Peer().log_in().open_channel()
    assert closes(peer.say(raw_frame(8, channel, payload)))[0][1] == code


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x3c\x00"])
def test_method_frame_without_a_method(payload: bytes) -> None:
    """A method frame too short for class and method is 502."""
    for channel in (0, 1, 2):
        peer = Peer().log_in().open_channel()
        assert closes(peer.say(raw_frame(1, channel, payload)))[0][1] == 502


@pytest.mark.parametrize("method", [commands.Queue.Declare(queue="queue", arguments={"a": [1, {"b": "c"}], "d": 2})])
def test_arguments_cut_short_or_too_long(method: commands.Queue.Declare) -> None:
    """Arguments that are cut at any octet, or have a trailing octet, are 502 and never reach the session."""
    payload = method_frame(1, method)[7:-1]
    for wrong in [payload[:size] for size in range(4, len(payload))] + [payload + b"\x00"]:
        peer = Peer().log_in().open_channel()
        ((_, close),) = peer.say(raw_frame(1, 1, wrong))
        assert (close.reply_code, close.class_id, close.method_id) == (502, 50, 10)
        assert [event[0] for event in peer.events[3:]] == ["channel closed", "closed"]


def test_text_that_is_not_utf_8() -> None:
    """A short string that is not UTF-8 is refused in RabbitMQ's words."""
    peer = Peer().log_in().open_channel()
    frame = method_frame(1, commands.Queue.Declare(queue="qqqq")).replace(b"qqqq", b"\xff\xfe\xfd\xfc")
    assert closes(peer.say(frame)) == [(0, 501, "FRAME_ERROR - Malformed UTF-8 in shortstr")]


@pytest.mark.parametrize("name", ["päivä", "队列", "a$b%c", "with space", "x" * 255, "\u0000"])
def test_names_that_rabbitmq_takes(name: str) -> None:
    """Any short string is a valid name for the codec; the broker's topology checks names."""
    peer = Peer().log_in().open_channel()
    octets = name.encode()
    arguments = b"\x00\x00" + bytes([len(octets)]) + octets + b"\x00" + b"\x00\x00\x00\x00"
    assert peer.say(raw_frame(1, 1, b"\x00\x32\x00\x0a" + arguments)) == []
    assert peer.events[-1][2:] == ("Queue.Declare", peer.events[-1][3])
    assert peer.events[-1][3]["queue"] == name


def test_channel_numbers() -> None:
    """The negotiated number of channels may be open, under any numbers; one more is 530."""
    peer = Peer().log_in(channel_max=3)
    for number in (1, 4, 65535):
        peer.open_channel(number)
    text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    assert closes(peer.say(commands.Channel.Open(), channel=2)) == [(0, 530, text)]


def test_channel_numbers_come_back() -> None:
    """Closing a channel allows another one to be opened."""
    peer = Peer().log_in(channel_max=1)
    for _ in range(3):
        peer.open_channel(1)
        peer.say(commands.Channel.Close(200, "", 0, 0), channel=1)
