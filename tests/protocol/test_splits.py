"""Input split at any octet: a conversation has the same events and answers, however it is split."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from pamqp import commands

from broker.amqp.errors import ChannelError
from tests.protocol.recording import (
    CAPABILITIES,
    PROTOCOL_HEADER,
    Peer,
    header_payload,
    method_frame,
    publish_frames,
    raw_frame,
)

HANDSHAKE = PROTOCOL_HEADER + b"".join(
    method_frame(0, step)
    for step in (
        commands.Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", "\0guest\0guest"),
        commands.Connection.TuneOk(2047, 131072, 60),
        commands.Connection.Open("/"),
    )
)
HEARTBEAT = raw_frame(8, 0, b"")
OPEN = method_frame(1, commands.Channel.Open())
OPEN_2 = method_frame(2, commands.Channel.Open())
PURGE = method_frame(1, commands.Queue.Purge(queue="q"))
CLOSE = method_frame(0, commands.Connection.Close(200, "bye", 0, 0))
PUBLISH, HEADER, BODY = (
    method_frame(1, commands.Basic.Publish(exchange="x", routing_key="k")),
    raw_frame(2, 1, header_payload(3)),
    raw_frame(3, 1, b"abc"),
)

CONVERSATIONS = {
    "orderly": HANDSHAKE
    + OPEN
    + HEARTBEAT
    + publish_frames(1, b"hello", delivery_mode=2)
    + publish_frames(1, b"")
    + publish_frames(1, b"three pieces", pieces=3, headers={"a": 1})
    + method_frame(1, commands.Basic.Ack(7, True))
    + HEARTBEAT
    + CLOSE,
    "two channels, one of which fails": HANDSHAKE
    + OPEN
    + OPEN_2
    + PURGE
    + publish_frames(1, b"discarded")
    + publish_frames(2, b"taken")
    + method_frame(1, commands.Channel.CloseOk())
    + OPEN
    + publish_frames(1, b"taken again")
    + CLOSE,
    "interleaved contents": HANDSHAKE
    + OPEN
    + OPEN_2
    + PUBLISH
    + publish_frames(2, b"between")
    + HEADER
    + HEARTBEAT
    + BODY
    + CLOSE,
    "body larger than announced": HANDSHAKE + OPEN + PUBLISH + HEADER + raw_frame(3, 1, b"abcd") + BODY,
    "body for nothing": HANDSHAKE + OPEN + PUBLISH + raw_frame(2, 1, header_payload(0)) + BODY + CLOSE,
    "empty body for nothing": HANDSHAKE
    + OPEN
    + PUBLISH
    + raw_frame(2, 1, header_payload(0))
    + raw_frame(3, 1, b"")
    + CLOSE,
    "header of another class": HANDSHAKE + OPEN + PUBLISH + raw_frame(2, 1, b"\x00\x0a" + header_payload(3)[2:]) + BODY,
    "malformed header": HANDSHAKE + OPEN + PUBLISH + raw_frame(2, 1, header_payload(3) + b"?") + BODY,
    "publish on a channel that is not open": HANDSHAKE + PUBLISH + HEADER + BODY + CLOSE,
    "publish on channel 0": HANDSHAKE + publish_frames(0, b"abc") + CLOSE,
    "header on another channel": HANDSHAKE + OPEN + OPEN_2 + PUBLISH + raw_frame(2, 2, header_payload(3)) + BODY,
    "body with a wrong end": HANDSHAKE + OPEN + PUBLISH + HEADER + raw_frame(3, 1, b"abc", end=0) + CLOSE,
    "header with a wrong end": HANDSHAKE + OPEN + PUBLISH + raw_frame(2, 1, header_payload(3), end=0) + BODY,
    "frame too large": HANDSHAKE + OPEN + PUBLISH + HEADER + b"\x03\x00\x01\xff\xff\xff\xff" + bytes(100),
    "message too large": HANDSHAKE + OPEN + PUBLISH + raw_frame(2, 1, header_payload(1 << 40)) + BODY + OPEN_2,
}


def pieces_of(octets: bytes, size: int) -> Iterator[bytes]:
    """Yield the octets in pieces of one size."""
    for at in range(0, len(octets), size):
        yield octets[at : at + size]


def converse(pieces: Iterator[bytes]) -> tuple[object, ...]:
    """Return all events and answers of a conversation."""
    peer = Peer()
    peer.session.raises["Queue.Purge"] = ChannelError(404, "no queue 'q' in vhost '/'")
    answers = b""
    for piece in pieces:
        peer.connection.feed(piece)
        answers += b"".join(peer.connection.take_output())
    assert peer.session.crashes == []
    return answers, peer.events, peer.errors, peer.connection.state, str(peer.connection.failure)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_split_anywhere(name: str) -> None:
    """A conversation split in two, at each of its octets, has the same result."""
    octets = CONVERSATIONS[name]
    whole = converse(iter([octets]))
    for at in range(1, len(octets)):
        assert converse(iter([octets[:at], octets[at:]])) == whole, f"cut at {at}"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_small_pieces(name: str, size: int) -> None:
    """A conversation in pieces of a few octets has the same result."""
    octets = CONVERSATIONS[name]
    assert converse(pieces_of(octets, size)) == converse(iter([octets]))


@pytest.mark.parametrize("budget_bytes", [1, 50, 1000])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_budget(name: str, budget_bytes: int) -> None:
    """A conversation processed in small rounds has the same result, and feed() reports when it is done."""
    octets = CONVERSATIONS[name]

    peer = Peer()
    peer.session.raises["Queue.Purge"] = ChannelError(404, "no queue 'q' in vhost '/'")
    rounds = 1
    through = peer.connection.feed(octets, budget_bytes)
    while not through:
        through = peer.connection.feed(b"", budget_bytes)
        rounds += 1
    result = (b"".join(peer.connection.take_output()), peer.events, peer.errors, peer.connection.state)
    assert result == converse(iter([octets]))[:4]
    # A round ends with the frame (or the three frames of a publish) that exceeds the budget.
    assert rounds <= len(octets) // budget_bytes + 2
    if budget_bytes == 1:
        assert rounds >= len(peer.events)


def test_a_large_frame_in_small_pieces_is_joined_once() -> None:
    """A frame that arrives octet by octet is not copied at each of them."""
    peer = Peer().log_in().open_channel()
    frames = publish_frames(1, bytes(100_000))
    channel = peer.connection.channels[1]
    peer.connection.feed(frames[:2000])
    for at in range(2000, len(frames) - 1):
        peer.connection.feed(frames[at : at + 1])
        assert peer.connection.buffered_bytes <= 1
        assert len(channel._body) == 1
    assert peer.connection.unfinished_bytes == 99_999
    peer.connection.feed(frames[-1:])
    assert (peer.connection.buffered_bytes, peer.connection.unfinished_bytes) == (0, 0)
    assert peer.events[-1][4] == bytes(100_000)


@pytest.mark.parametrize(("size", "count"), [(204_800, 40), (8 << 20, 2)])
def test_a_large_body_takes_its_own_memory_and_no_more(size: int, count: int) -> None:
    """The chunks that a body arrived in are freed with its last octet; until then it takes twice its size."""
    peer = Peer().log_in().open_channel()
    parts = -(-size // 131_064)
    octets = memoryview(publish_frames(1, bytes(size), pieces=parts) * count)
    tracemalloc.start()
    try:
        for at in range(0, len(octets), 256_000):
            peer.connection.feed(bytes(octets[at : at + 256_000]))
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(event[4]) for event in peer.events if event[0] == "publish"] == [size] * count
    assert held_bytes < count * size + 600_000
    assert peak_bytes < (count + 1) * size + 900_000
