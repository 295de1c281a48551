"""Contents: a publish is its method, its header and its body frames, in this order and of the announced size."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pamqp import commands

from broker.amqp.errors import ChannelError
from broker.amqp.framing import LARGE_BYTES
from broker.amqp.handshake import ConnectionLimits
from tests.protocol.recording import Peer, closes, header_payload, method_frame, publish_frames, raw_frame

PUBLISH = commands.Basic.Publish(exchange="x", routing_key="k")
NO_METHOD = (0, 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")
NO_HEADER = (0, 505, "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead")
NO_BODY = (0, 505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead")
TOO_MUCH = (0, 501, "FRAME_ERROR - content body frame exceeds remaining content size")


def open_peer(limits: ConnectionLimits | None = None) -> Peer:
    """Return a peer with channel 1."""
    return Peer(limits).log_in().open_channel()


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("delivery_mode", [None, 1, 2])
def test_publish_arrives_whole(pieces: int, delivery_mode: int | None) -> None:
    """The session gets the raw method, the raw header, the joined body and the persistence, once."""
    peer = open_peer()
    header = header_payload(11, delivery_mode=delivery_mode, content_type="text/plain")
    frames = publish_frames(1, b"hello world", pieces=pieces, delivery_mode=delivery_mode, content_type="text/plain")
    assert peer.say(frames) == []
    event = ("publish", 1, ("x", "k", False, False), header, b"hello world", delivery_mode == 2)
    assert peer.events[3:] == [event]


def test_facts_are_those_of_each_header() -> None:
    """The session gets the facts of this header, whether it is repeated, cached or arrives after a pause."""
    peer = open_peer()
    ours: dict[str, Any] = {"delivery_mode": 2, "message_id": "ours"}
    theirs: dict[str, Any] = {"delivery_mode": 1, "message_id": "theirs"}
    method = len(method_frame(1, PUBLISH))
    order = [(ours, 0), (ours, 0), (theirs, method), (ours, 0), (theirs, 0), (ours, method), (theirs, 0), (ours, 0)]
    for properties, pause_at in order:
        frames = publish_frames(1, b"hello world", **properties)
        assert peer.say(frames[:pause_at], frames[pause_at:]) == []
    assert [event[5] for event in peer.events[3:]] == [properties is ours for properties, _ in order]


def test_empty_bodies() -> None:
    """An empty body has no frames, and empty frames add nothing to a body."""
    peer = open_peer()
    empty = raw_frame(3, 1, b"")
    peer.say(publish_frames(1, b""))
    peer.say(PUBLISH, channel=1)
    peer.say(raw_frame(2, 1, header_payload(2)), *[empty] * 100, raw_frame(3, 1, b"a"), empty, raw_frame(3, 1, b"b"))
    assert [event[4] for event in peer.events[3:]] == [b"", b"ab"]


@pytest.mark.parametrize("kind", [2, 3])
def test_content_without_a_publish(kind: int) -> None:
    """Content without a publish is 505, on an open channel and on a closed one."""
    payload = header_payload(3)
    assert closes(open_peer().say(raw_frame(kind, 1, payload))) == [NO_METHOD]
    assert closes(open_peer().say(raw_frame(kind, 9, payload))) == [NO_METHOD]


def test_content_on_channel_0() -> None:
    """Channel 0 has no contents (section 4.2.3)."""
    for kind in (2, 3):
        ((_, code, text),) = closes(open_peer().say(raw_frame(kind, 0, b"abc")))
        assert (code, text) == (505, f'UNEXPECTED_FRAME - type {kind}, all octets = <<"abc">>')


def test_body_instead_of_a_header() -> None:
    """A body frame without a header is refused."""
    peer = open_peer()
    peer.say(PUBLISH, channel=1)
    ((_, close),) = peer.say(raw_frame(3, 1, b"abc"))
    assert (0, close.reply_code, close.reply_text) == NO_HEADER
    assert (close.class_id, close.method_id) == (60, 40)


def test_header_instead_of_a_body() -> None:
    """A header frame instead of the announced body is refused."""
    peer = open_peer()
    peer.say(PUBLISH, channel=1)
    header = raw_frame(2, 1, header_payload(3))
    assert closes(peer.say(header + header)) == [NO_BODY]


def test_header_of_another_class_or_weight() -> None:
    """A header must be of class basic, and its weight 0 (section 4.2.6.1)."""
    for beginning, text in (
        (b"\x00\x3c\x00\x01", NO_HEADER[2]),
        (b"\x00\x0a\x00\x00", "UNEXPECTED_FRAME - expected content header for class 60, got one for class 10 instead"),
    ):
        for body in (b"", raw_frame(3, 1, b"abc")):
            peer = open_peer()
            peer.say(PUBLISH, channel=1)
            header = raw_frame(2, 1, beginning + header_payload(3)[4:])
            assert closes(peer.say(header + body)) == [(0, 505, text)]


@pytest.mark.parametrize("size", range(14))
def test_header_cut_short(size: int) -> None:
    """A header without its fixed fields is a framing error; one without flags is a syntax error."""
    peer = open_peer()
    peer.say(PUBLISH, channel=1)
    code = 501 if size < 12 else 502
    assert closes(peer.say(raw_frame(2, 1, header_payload(0)[:size])))[0][1] == code


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 1, 2), (0, 4)])
def test_body_larger_than_announced(sizes: tuple[int, ...]) -> None:
    """The body frames may not exceed the announced size, in one frame or in several."""
    peer = open_peer()
    peer.say(PUBLISH, channel=1)
    bodies = b"".join(raw_frame(3, 1, bytes(size)) for size in sizes)
    assert closes(peer.say(raw_frame(2, 1, header_payload(3)) + bodies)) == [TOO_MUCH]
    assert [event[0] for event in peer.events[3:]] == ["channel closed", "closed"]


@pytest.mark.parametrize("size", [1001, 1 << 32, (1 << 64) - 1])
def test_message_larger_than_allowed(size: int) -> None:
    """The announced size is checked before a body is buffered; later frames are dropped with the channel."""
    peer = open_peer(ConnectionLimits(max_message_size_bytes=1000)).open_channel(2)
    header = struct.pack(">HHQH", 60, 0, size, 0)
    frames = publish_frames(1, b"")[: -len(raw_frame(2, 1, header_payload(0)))] + raw_frame(2, 1, header)
    ((number, close),) = peer.say(frames + raw_frame(3, 1, bytes(1001)) + publish_frames(2, b"taken"))
    text = f"PRECONDITION_FAILED - message size {size} is larger than configured max size 1000"
    assert (number, close.reply_code, close.reply_text) == (1, 406, text)
    assert (close.class_id, close.method_id) == (60, 40)
    assert peer.events[-2:][0] == ("channel closed", 1)
    assert peer.events[-1][4] == b"taken"


def test_message_of_the_largest_size() -> None:
    """A message of exactly the maximal size is accepted, in one frame or in two."""
    peer = open_peer(ConnectionLimits(max_message_size_bytes=1000))
    peer.say(publish_frames(1, bytes(1000)), publish_frames(1, bytes(1000), pieces=2))
    assert [len(event[4]) for event in peer.events[3:]] == [1000, 1000]


def test_error_of_a_publish_names_it() -> None:
    """The close for an error of a publish names basic.publish, and its content does not remain."""
    peer = open_peer()
    peer.session.raises["Basic.Publish"] = ChannelError(404, "no exchange 'x' in vhost '/'")
    ((number, close),) = peer.say(publish_frames(1, b"abc"))
    assert (number, close.reply_code, close.reply_text) == (1, 404, "NOT_FOUND - no exchange 'x' in vhost '/'")
    assert (close.class_id, close.method_id) == (60, 40)


def test_malformed_properties() -> None:
    """Properties that do not fill their header are 502, whether they are cached or not."""
    for _ in range(2):
        for header in (header_payload(0, app_id="a") + b"\x00", header_payload(0, app_id="abc")[:-1]):
            peer = open_peer()
            peer.say(PUBLISH, channel=1)
            assert closes(peer.say(raw_frame(2, 1, header)))[0][1] == 502


def test_unknown_persistence_is_not_kept_from_the_message_before() -> None:
    """Each message has its own delivery mode, not that of the message before."""
    peer = open_peer()
    for mode in (2, None, 2, 1):
        peer.say(publish_frames(1, b"a", delivery_mode=mode))
    assert [event[5] for event in peer.events[3:]] == [True, False, True, False]


def test_parts_of_a_body_are_kept_as_they_come() -> None:
    """All octets are counted until the last arrives, and small frames share one object, whatever their number."""
    peer = open_peer()
    sizes = [LARGE_BYTES, *[2] * 1000, 0, LARGE_BYTES, LARGE_BYTES + 1, *[LARGE_BYTES - 1] * 3, 1]
    parts = [bytes([1 + place % 255]) * size for place, size in enumerate(sizes)]
    peer.say(method_frame(1, PUBLISH), raw_frame(2, 1, header_payload(sum(sizes))))
    for place, part in enumerate(parts[:-1], 1):
        peer.say(raw_frame(3, 1, part))
        assert peer.connection.unfinished_bytes == sum(sizes[:place])
    assert len(peer.connection.channels[1]._body) == 5
    assert len(peer.events) == 3
    peer.say(raw_frame(3, 1, parts[-1]))
    assert peer.events[3][4] == b"".join(parts)
    assert peer.connection.unfinished_bytes == 0
    peer.say(publish_frames(1, b"next", pieces=2))
    assert peer.events[4][4] == b"next"


@pytest.mark.parametrize("size", [2, LARGE_BYTES])
def test_parts_of_a_body_go_with_their_channel(size: int) -> None:
    """Closing a channel within a content drops it, and the next channel of that number starts over."""
    peer = open_peer()
    peer.say(method_frame(1, PUBLISH), raw_frame(2, 1, header_payload(2 * size)), raw_frame(3, 1, bytes(size)))
    channel = peer.connection.channels[1]
    peer.connection.fail(ChannelError(404, "gone"), 1)
    assert (channel.unfinished_bytes, peer.connection.unfinished_bytes) == (0, 0)
    peer.say(method_frame(1, commands.Channel.CloseOk()))
    peer.open_channel()
    peer.say(publish_frames(1, b"ab", pieces=2))
    assert peer.events[-1][4] == b"ab"


def test_replies_with_content_are_cut_for_the_peer() -> None:
    """Content is sent in frames of at most the negotiated size (section 4.2.6.2), which join to the original."""
    peer = Peer().log_in(frame_max=4096).open_channel()
    header, body = header_payload(10_000, app_id="a"), bytes(range(250)) * 40
    peer.connection.channels[1].send_content(commands.Basic.Return(312, "NO_ROUTE", "x", "k"), header, body)
    output = b"".join(peer.connection.take_output())
    sizes, at = [], 0
    while at < len(output):
        sizes.append(struct.unpack_from(">I", output, at + 3)[0] + 8)
        at += sizes[-1]
    assert max(sizes) == 4096
    assert len(sizes) == 5
    peer.connection.channels[1].send_content(commands.Basic.Return(312, "NO_ROUTE", "x", "k"), header, body)
    (_, returned), (_, properties), *bodies = peer.answers()
    assert (returned.reply_code, properties.app_id) == (312, "a")
    assert b"".join(octets for _, octets in bodies) == body
