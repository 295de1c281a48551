"""Cutting frames out of bytes."""

import struct

import pytest

from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import FRAMES_OF_PUBLISH, FrameCutter, describe_frame, encode_frame

PUBLISH = b"\x00\x3c\x00\x28\x00\x00\x01x\x01k\x00"


def cut(cutter: FrameCutter, data: bytes = b"") -> list[tuple[int, int, bytes]]:
    """Returns the frames that come of more bytes, a publish as its three frames."""
    if data:
        cutter.feed(data)
    found = []
    for kind, channel, payload, header, body in cutter.frames():
        if kind == FRAMES_OF_PUBLISH:
            found += [(1, channel, payload), (2, channel, header), (3, channel, body)]
        else:
            found.append((kind, channel, payload))
    return found


def test_frame_is_its_head_payload_and_end() -> None:
    """A frame is laid out as in section 4.2.3."""
    assert encode_frame(1, 258, b"ab") == b"\x01\x01\x02\x00\x00\x00\x02ab\xce"


def test_frames_of_one_chunk_and_of_many() -> None:
    """However the bytes come, the frames are the same."""
    frames = [(1, 1, PUBLISH), (2, 1, b"header"), (3, 1, b""), (8, 0, b""), (3, 65535, bytes(300)), (1, 2, PUBLISH)]
    octets = b"".join(encode_frame(*frame) for frame in frames)
    assert cut(FrameCutter(4096), octets) == frames
    for size in (1, 2, 5, 7, 8, 9, 100):
        cutter = FrameCutter(4096)
        found = []
        for at in range(0, len(octets), size):
            found += cut(cutter, octets[at : at + size])
        assert found == frames
        assert cutter.buffered_bytes == 0


def test_publish_is_one_when_it_is_whole() -> None:
    """The three frames of a publish come as one, but only on one channel, in order, and with one body frame."""
    method, header, body = encode_frame(1, 1, PUBLISH), encode_frame(2, 1, b"h"), encode_frame(3, 1, b"body")
    cutter = FrameCutter(4096)
    cutter.feed(method + header + body + encode_frame(8, 0, b""))
    assert list(cutter.frames()) == [
        (FRAMES_OF_PUBLISH, 1, PUBLISH, b"h", b"body"),
        (8, 0, b"", b"", b""),
    ]
    others = [
        method + encode_frame(2, 2, b"h") + body,
        method + header + encode_frame(3, 2, b"body"),
        method + body + header,
        method + header + header,
        encode_frame(1, 1, b"\x00\x3c\x00\x14" + PUBLISH[4:]) + header + body,
        encode_frame(2, 1, PUBLISH) + header + body,
    ]
    for octets in others:
        cutter = FrameCutter(4096)
        cutter.feed(octets)
        assert [frame[0] for frame in cutter.frames()] == [octets[0], *[frame[0] for frame in list(_heads(octets))[1:]]]


def _heads(octets: bytes) -> list[tuple[int, int, int]]:
    found, at = [], 0
    while at < len(octets):
        head = struct.unpack_from(">BHI", octets, at)
        found.append(head)
        at += head[2] + 8
    return found


def test_iteration_is_taken_up_again() -> None:
    """A caller that stops finds the next frame where it left off, also when more bytes came."""
    cutter = FrameCutter(4096)
    cutter.feed(b"".join(encode_frame(3, number, b"x") for number in range(4)))
    assert next(iter(cutter.frames()))[1] == 0
    assert cutter.has_frame
    assert cutter.buffered_bytes == 27
    cutter.feed(encode_frame(3, 4, b"x")[:5])
    assert [frame[1] for frame in cut(cutter)] == [1, 2, 3]
    assert not cutter.has_frame
    assert cut(cutter, encode_frame(3, 4, b"x")[5:]) == [(3, 4, b"x")]


def test_budget() -> None:
    """Frames end with the one that uses up the budget."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(3, 1, bytes(92)) * 10)
    assert [len(list(cutter.frames(budget))) for budget in (0, 1, 100, 101, 250)] == [0, 1, 1, 2, 3]


def test_budget_with_nothing_left() -> None:
    """A budget that is not used up does not make the cutter wait for a frame that has not begun."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(3, 1, b"a"))
    assert len(list(cutter.frames(1000))) == 1
    assert list(cutter.frames(1000)) == []
    octets = encode_frame(3, 1, b"second")
    assert [cut(cutter, octets[at : at + 5]) for at in (0, 5, 10)] == [[], [], [(3, 1, b"second")]]


def test_limit_may_change_between_frames() -> None:
    """The negotiated size holds from the next frame on, though that is received already."""
    cutter = FrameCutter(100)
    cutter.feed(encode_frame(1, 0, bytes(90)) + encode_frame(1, 0, bytes(5000)))
    for frame in cutter.frames():
        cutter.limit_bytes = 8192
        last = frame
    assert len(last[2]) == 5000


def test_large_content_is_not_taken_for_a_publish() -> None:
    """A header or body beyond the limit is refused behind a publish too."""
    for header, body in ((bytes(200), b""), (b"h", bytes(200))):
        cutter = FrameCutter(100)
        cutter.feed(encode_frame(1, 1, PUBLISH) + encode_frame(2, 1, header) + encode_frame(3, 1, body))
        frames = cutter.frames()
        assert next(frames)[0] == 1
        with pytest.raises(ConnectionFault, match="frame_too_large,200,92"):
            list(frames)
        assert cutter.broken


def test_good_frames_come_before_the_broken_one() -> None:
    """What came before a broken frame is not lost, and the broken one is named."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(1, 1, b"good") + encode_frame(3, 1, b"bad")[:-1] + b"\x00")
    frames = cutter.frames()
    assert next(frames)[2] == b"good"
    with pytest.raises(ConnectionFault) as caught:
        next(frames)
    assert caught.value.reply_code == 501
    assert "type 3, all octets = <<98,97,100>>: {invalid_frame_end_marker,0}" in caught.value.reply_text


def test_too_large_is_known_at_the_head() -> None:
    """Seven octets are enough to refuse a frame; nothing of its payload is waited for."""
    cutter = FrameCutter(4096)
    cutter.feed(struct.pack(">BHI", 3, 1, 4097))
    assert cutter.has_frame
    with pytest.raises(ConnectionFault):
        next(cutter.frames())


def test_description_shows_little_of_a_large_payload() -> None:
    """A reply text shows sixteen octets at most."""
    assert describe_frame(3, bytes(17)) == f"type 3, first 16 octets = <<{','.join('0' * 16)}>>"
    assert describe_frame(3, bytes(16)).startswith("type 3, all octets = <<0,")


def test_clear_ends_an_iteration() -> None:
    """A connection that ends inside a frame meets no further frame."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(1, 1, b"a") * 5 + b"\x01")
    seen = 0
    for _ in cutter.frames():
        seen += 1
        cutter.clear()
    assert (seen, cutter.buffered_bytes) == (1, 0)
    assert cut(cutter, encode_frame(1, 1, b"b")) == [(1, 1, b"b")]
