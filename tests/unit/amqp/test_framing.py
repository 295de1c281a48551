"""Cutting frames out of a byte stream."""

import struct

import pytest

from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import (
    LARGE_BYTES,
    RUN_MAX,
    RUN_OF_PUBLISHES,
    FrameCutter,
    PublishRun,
    describe_frame,
    encode_frame,
    join_small,
)

PUBLISH = b"\x00\x3c\x00\x28\x00\x00\x01x\x01k\x00"


def cut(cutter: FrameCutter, data: bytes = b"") -> list[tuple[int, int, bytes]]:
    """Return the frames in further bytes, with a publish as its three frames."""
    if data:
        cutter.feed(data)
    found = []
    for kind, channel, payload, run in cutter.frames():
        if run is None:
            found.append((kind, channel, payload))
        else:
            assert (kind, payload) == (RUN_OF_PUBLISHES, run.payloads[0])
            for method, header, body in zip(run.payloads, run.headers, run.bodies, strict=True):
                found += [(1, channel, method), (2, channel, header), (3, channel, body)]
    return found


def header_of(size: int, properties: bytes = b"\x00\x00") -> bytes:
    """Return the payload of a content header frame."""
    return b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + properties


def publish(channel: int, body: bytes, method: bytes = PUBLISH, properties: bytes = b"\x00\x00") -> bytes:
    """Return the three frames of a publish."""
    return (
        encode_frame(1, channel, method)
        + encode_frame(2, channel, header_of(len(body), properties))
        + encode_frame(3, channel, body)
    )


def runs_of(cutter: FrameCutter) -> list[PublishRun | int]:
    """Return the runs of publishes, and the types of the other frames."""
    return [frame[0] if frame[3] is None else frame[3] for frame in cutter.frames()]


def test_frame_is_its_head_payload_and_end() -> None:
    """The layout of a frame is that of section 4.2.3."""
    assert encode_frame(1, 258, b"ab") == b"\x01\x01\x02\x00\x00\x00\x02ab\xce"


def test_frames_of_one_chunk_and_of_many() -> None:
    """The frames are the same however the bytes are split."""
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
    """The three frames of a publish are one item if they are on one channel, in order, with one body frame."""
    method, header, body = encode_frame(1, 1, PUBLISH), encode_frame(2, 1, header_of(4)), encode_frame(3, 1, b"body")
    cutter = FrameCutter(4096)
    cutter.feed(method + header + body + encode_frame(8, 0, b""))
    (kind, channel, payload, run), heartbeat = cutter.frames()
    assert (kind, channel, payload, heartbeat) == (RUN_OF_PUBLISHES, 1, PUBLISH, (8, 0, b"", None))
    assert run is not None
    assert (run.payloads, run.headers, run.bodies, run.largest_bytes) == ([PUBLISH], [header_of(4)], [b"body"], 4)
    others = [
        method + encode_frame(2, 2, header_of(4)) + body,
        method + encode_frame(2, 1, header_of(5)) + body,
        method + encode_frame(2, 1, b"\x00\x3d" + header_of(4)[2:]) + body,
        method + encode_frame(2, 1, header_of(4)[:12]) + body,
        method + encode_frame(2, 1, header_of(0)) + encode_frame(3, 1, b""),
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


def test_publishes_in_a_row_are_one_run() -> None:
    """Publishes of one channel with equal properties form a run, whatever their keys and sizes."""
    bodies = [b"a", b"b", b"longer", b"c"]
    methods = [
        b"\x00\x3c\x00\x28\x00\x00\x01x" + bytes([len(key)]) + key + b"\x00" for key in (b"k", b"", b"word.word", b"k")
    ]
    cutter = FrameCutter(4096)
    cutter.feed(b"".join(publish(1, body, method) for body, method in zip(bodies, methods, strict=True)))
    (run,) = runs_of(cutter)
    assert isinstance(run, PublishRun)
    assert (run.payloads, run.bodies, run.largest_bytes) == (methods, bodies, 6)
    assert run.headers == [header_of(len(body)) for body in bodies]
    assert run.headers[0] is run.headers[1]


def test_a_run_ends_where_something_else_begins() -> None:
    """A run ends at another channel, other properties, another frame, the budget or its maximum; nothing is lost."""
    other = b"\x10\x00\x02"
    octets = publish(1, b"a") + publish(1, b"b") + publish(2, b"c") + publish(2, b"d", properties=other)
    cutter = FrameCutter(4096)
    cutter.feed(octets + encode_frame(8, 0, b"") + publish(2, b"e", properties=other) + publish(2, b"f")[:-1])
    found = [run if isinstance(run, int) else run.bodies for run in runs_of(cutter)]
    assert found == [[b"a", b"b"], [b"c"], [b"d"], 8, [b"e"], 1, 2]
    cutter.clear()
    cutter.feed(octets)
    assert [len(run.bodies) for frame in cutter.frames(1) if (run := frame[3])] == [1]
    assert sum(len(run.bodies) for run in runs_of(cutter) if isinstance(run, PublishRun)) == 3
    cutter.feed(publish(1, b"a") * (RUN_MAX + 1))
    assert [len(run.bodies) for run in runs_of(cutter) if isinstance(run, PublishRun)] == [RUN_MAX, 1]


def test_what_is_no_publish_is_judged_by_itself() -> None:
    """A method with content that is no publish is given back and then cut as plain frames."""
    consume = b"\x00\x3c\x00\x14" + PUBLISH[4:]
    cutter = FrameCutter(4096)
    cutter.feed(publish(1, b"a") + publish(1, b"b", consume) + publish(1, b"c"))
    kinds = []
    for kind, _channel, payload, run in cutter.frames():
        kinds.append((kind, payload if run is None else len(run.bodies)))
        if run is not None and consume in run.payloads:
            cutter.take_back(run, run.payloads.index(consume))
    assert kinds == [(RUN_OF_PUBLISHES, 3), (1, consume), (2, header_of(1)), (3, b"b"), (RUN_OF_PUBLISHES, 1)]


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_what_was_not_taken_of_a_run_comes_again(taken: int) -> None:
    """A caller may accept part of a run; the rest is cut again, also after more bytes."""
    bodies = [b"a", b"bb", b"ccc", b"d"]
    cutter = FrameCutter(4096)
    cutter.feed(b"".join(publish(1, body) for body in bodies[:3]) + publish(1, bodies[3])[:20])
    frame = next(cutter.frames())
    assert frame[3] is not None
    cutter.take_back(frame[3], taken)
    assert cut(cutter, publish(1, bodies[3])[20:])[2::3] == [(3, 1, body) for body in bodies[taken:]]


def test_a_run_has_no_frame_beyond_the_limit() -> None:
    """A method frame beyond the limit is refused at its place, after the valid publishes before it."""
    cutter = FrameCutter(100)
    cutter.feed(publish(1, b"a") + publish(1, b"b", PUBLISH + bytes(100)))
    frames = cutter.frames()
    frame = next(frames)
    assert frame[3] is not None
    assert frame[3].bodies == [b"a"]
    with pytest.raises(ConnectionFault, match="frame_too_large"):
        next(frames)


def test_iteration_is_taken_up_again() -> None:
    """A stopped iteration continues at the next frame, also after more bytes."""
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
    """The iteration ends with the frame that exhausts the budget."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(3, 1, bytes(92)) * 10)
    assert [len(list(cutter.frames(budget))) for budget in (0, 1, 100, 101, 250)] == [0, 1, 1, 2, 3]


def test_budget_with_nothing_left() -> None:
    """With budget left, an incomplete frame does not stop the iteration early."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(3, 1, b"a"))
    assert len(list(cutter.frames(1000))) == 1
    assert list(cutter.frames(1000)) == []
    octets = encode_frame(3, 1, b"second")
    assert [cut(cutter, octets[at : at + 5]) for at in (0, 5, 10)] == [[], [], [(3, 1, b"second")]]


def test_limit_may_change_between_frames() -> None:
    """The negotiated size applies to the next frame, even if that is already buffered."""
    cutter = FrameCutter(100)
    cutter.feed(encode_frame(1, 0, bytes(90)) + encode_frame(1, 0, bytes(5000)))
    for frame in cutter.frames():
        cutter.limit_bytes = 8192
        last = frame
    assert len(last[2]) == 5000


def test_large_content_is_not_taken_for_a_publish() -> None:
    """A header or body beyond the limit is refused also after a publish method."""
    for header, body in ((bytes(200), b""), (b"h", bytes(200))):
        cutter = FrameCutter(100)
        cutter.feed(encode_frame(1, 1, PUBLISH) + encode_frame(2, 1, header) + encode_frame(3, 1, body))
        frames = cutter.frames()
        assert next(frames)[0] == 1
        with pytest.raises(ConnectionFault, match="frame_too_large,200,92"):
            list(frames)
        assert cutter.broken


def test_good_frames_come_before_the_broken_one() -> None:
    """Frames before a broken frame are returned, and the error describes the broken one."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(1, 1, b"good") + encode_frame(3, 1, b"bad")[:-1] + b"\x00")
    frames = cutter.frames()
    assert next(frames)[2] == b"good"
    with pytest.raises(ConnectionFault) as caught:
        next(frames)
    assert caught.value.reply_code == 501
    assert 'type 3, all octets = <<"bad">>: {invalid_frame_end_marker,0}' in caught.value.reply_text


def test_too_large_is_known_at_the_head() -> None:
    """Seven octets are enough to refuse a frame, without waiting for its payload."""
    cutter = FrameCutter(4096)
    cutter.feed(struct.pack(">BHI", 3, 1, 4097))
    assert cutter.has_frame
    with pytest.raises(ConnectionFault):
        next(cutter.frames())


def test_description_shows_little_of_a_large_payload() -> None:
    """A reply text shows at most sixteen octets."""
    assert describe_frame(3, bytes(17)) == f"type 3, first 16 octets = <<{','.join('0' * 16)}>>"
    assert describe_frame(3, bytes(16)).startswith("type 3, all octets = <<0,")
    assert describe_frame(8, b'a "b" \\') == r'type 8, all octets = <<"a \"b\" \\">>'
    assert describe_frame(8, b"a\x7f") == "type 8, all octets = <<97,127>>"


def test_clear_ends_an_iteration() -> None:
    """A connection that ends within a frame yields no further frame."""
    cutter = FrameCutter(4096)
    cutter.feed(encode_frame(1, 1, b"a") * 5 + b"\x01")
    seen = 0
    for _ in cutter.frames():
        seen += 1
        cutter.clear()
    assert (seen, cutter.buffered_bytes) == (1, 0)
    assert cut(cutter, encode_frame(1, 1, b"b")) == [(1, 1, b"b")]


# ---- large frames ----------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * (LARGE_BYTES // 256)
LARGE_FRAMES = [(8, 0, b""), (2, 1, header_of(1)), (3, 1, LARGE), (3, 2, b"x"), (1, 1, PUBLISH), (2, 1, header_of(1))]


def octets_of(frames: list[tuple[int, int, bytes]]) -> bytes:
    """Return the frames as octets."""
    return b"".join(encode_frame(*frame) for frame in frames)


@pytest.mark.parametrize("budget_bytes", [None, 1, LARGE_BYTES])
def test_a_large_frame_may_be_cut_anywhere(budget_bytes: int | None) -> None:
    """A large frame may be split at each octet, between small frames; its octets are counted until it is cut."""
    octets = octets_of(LARGE_FRAMES)
    for at in range(1, len(octets), 1 if budget_bytes is None else 5):
        cutter = FrameCutter(1 << 17)
        found: list[tuple[int, int, bytes]] = []
        fed = 0
        for chunk in (octets[:at], octets[at:]):
            cutter.feed(chunk)
            fed += len(chunk)
            while True:
                found += [frame[:3] for frame in cutter.frames(budget_bytes)]
                assert cutter.buffered_bytes == fed - sum(len(frame[2]) + 8 for frame in found)
                if not cutter.has_frame:
                    break
        assert found == LARGE_FRAMES, f"cut at {at}"


@pytest.mark.parametrize("size", [1000, 4096, LARGE_BYTES - 1])
def test_a_large_frame_in_many_chunks(size: int) -> None:
    """The frames are the same, and none is returned before it is complete."""
    octets = octets_of(LARGE_FRAMES * 3)
    cutter = FrameCutter(1 << 17)
    found: list[tuple[int, int, bytes]] = []
    for at in range(0, len(octets), size):
        found += cut(cutter, octets[at : at + size])
        cut_bytes = sum(len(frame[2]) + 8 for frame in found)
        assert cutter.buffered_bytes == min(at + size, len(octets)) - cut_bytes
    assert found == LARGE_FRAMES * 3


@pytest.mark.parametrize("budget_bytes", [None, 17])
def test_what_is_behind_a_large_frame_stays_where_it_is(budget_bytes: int | None) -> None:
    """The rest of the chunk that completes a frame is cut in place, also after a budget ended before the frame."""
    octets = octets_of(LARGE_FRAMES)
    cutter = FrameCutter(1 << 17)
    cutter.feed(octets[:60])
    found = [frame[:3] for frame in cutter.frames(budget_bytes)]
    assert found == LARGE_FRAMES[:2]
    rest = octets[60:]
    cutter.feed(rest)
    assert cutter._buffer is rest
    assert cut(cutter) == LARGE_FRAMES[2:]


def test_a_large_frame_waits_for_the_budget() -> None:
    """A complete large frame waits for budget and is counted; it exhausts the budget, and more bytes may precede it."""
    octets = octets_of(LARGE_FRAMES)
    cutter = FrameCutter(1 << 17)
    assert cut(cutter, octets[:100]) == LARGE_FRAMES[:2]
    cutter.feed(octets[100:])
    waiting = cutter.buffered_bytes
    assert list(cutter.frames(0)) == []
    assert (cutter.has_frame, cutter.buffered_bytes) == (True, waiting)
    cutter.feed(octets[:-5])
    assert [frame[:3] for frame in cutter.frames(len(LARGE) + 8)] == [LARGE_FRAMES[2]]
    assert cutter.buffered_bytes == waiting + len(octets) - 5 - len(LARGE) - 8
    assert cut(cutter) == LARGE_FRAMES[3:] + LARGE_FRAMES[:-1]
    assert cut(cutter, octets[-5:]) == LARGE_FRAMES[-1:]


def test_an_iteration_may_end_at_a_large_frame() -> None:
    """The next iteration returns what follows a large frame; clear() drops all of it."""
    octets = octets_of(LARGE_FRAMES)
    cutter = FrameCutter(1 << 17)
    cut(cutter, octets[:100])
    cutter.feed(octets[100:])
    assert next(cutter.frames())[2] == LARGE
    assert cut(cutter) == LARGE_FRAMES[3:]
    cut(cutter, octets[:100])
    cutter.feed(octets[100:])
    cutter.clear()
    assert (cutter.buffered_bytes, cutter.has_frame, cut(cutter)) == (0, False, [])


def test_a_large_frame_in_two_chunks_is_judged_like_any_other() -> None:
    """A large frame is checked for its end octet and for the present limit, which may have changed since its head."""
    octets = octets_of(LARGE_FRAMES[:3])[:-1] + b"\x00"
    cutter = FrameCutter(1 << 17)
    assert cut(cutter, octets[:100]) == LARGE_FRAMES[:2]
    with pytest.raises(ConnectionFault, match="invalid_frame_end_marker,0"):
        cut(cutter, octets[100:])
    cutter = FrameCutter(1 << 17)
    cutter.feed(octets_of(LARGE_FRAMES)[:100])
    assert len(list(cutter.frames(1))) == 1
    cutter.limit_bytes = 4096
    cutter.feed(octets_of(LARGE_FRAMES)[100:])
    with pytest.raises(ConnectionFault, match=f"frame_too_large,{LARGE_BYTES}"):
        cut(cutter)


def test_output_is_joined_but_for_what_is_large() -> None:
    """Large pieces are handed on unchanged, and the output between them is joined."""
    assert join_small([], []) == []
    assert join_small([b"a", memoryview(b"bc")[1:], b"d"], []) == [b"acd"]
    body = memoryview(LARGE)
    pieces = join_small([b"a", b"b", body, b"c", LARGE, b"d", b"e"], [2, 4])
    assert pieces == [b"ab", LARGE, b"c", LARGE, b"de"]
    assert pieces[1] is body
    assert pieces[3] is LARGE
