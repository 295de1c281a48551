"""Cutting frames out of a byte stream."""

import struct
from itertools import pairwise

import pytest

from broker.amqp.errors import ConnectionFault, describe_frame
from broker.amqp.framing import (
    FRONT_BYTES,
    LARGE_BYTES,
    NO_FRAME,
    RETAINED_MAX_BYTES,
    RUN_MAX,
    RUN_OF_PUBLISHES,
    FrameCutter,
    PublishRun,
)
from broker.amqp.output import join_small
from broker.amqp.wire import encode_frame

PUBLISH = b"\x00\x3c\x00\x28\x00\x00\x01x\x01k\x00"


def cut(
    cutter: FrameCutter, data: bytes = b"", found: list[tuple[int, int, bytes]] | None = None
) -> list[tuple[int, int, bytes]]:
    """Return the frames in further bytes, with a publish as its three frames, and parts of a frame as one."""
    if data:
        cutter.feed(data)
    found = [] if found is None else found
    for kind, channel, payload, run in cutter.frames():
        if run is None:
            found.append((kind, channel, payload))
        elif isinstance(run, memoryview):
            assert len(payload) == FRONT_BYTES
            add_part(found, channel, run)
        else:
            assert (kind, payload) == (RUN_OF_PUBLISHES, run.payloads[0])
            for method, header, body in zip(run.payloads, run.headers, run.bodies, strict=True):
                found += [(1, channel, method), (2, channel, header), (3, channel, body)]
    return found


def add_part(found: list[tuple[int, int, bytes]], channel: int, part: memoryview) -> None:
    """Add a part of a large body frame to its earlier parts."""
    before = b""
    if found and found[-1][0] == 3 and 0 < len(found[-1][2]) < len(LARGE):
        before = found.pop()[2]
    found.append((3, channel, before + part))


def parts_of(cutter: FrameCutter, budget_bytes: int | None = None) -> list[object]:
    """Return the parts of large body frames."""
    return [frame[3] for frame in cutter.frames(budget_bytes)]


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
    """Return copies of the runs of publishes, each valid until the next frame, and the types of the other frames."""
    return [copy_of(frame[3]) if isinstance(frame[3], PublishRun) else frame[0] for frame in cutter.frames()]


def copy_of(run: PublishRun) -> PublishRun:
    """Return a copy of a run."""
    return PublishRun(run.at, run.payloads[:], run.headers[:], run.bodies[:], run.largest_bytes)


@pytest.fixture
def cutter() -> FrameCutter:
    """Return a cutter of frames of 4096 octets."""
    return FrameCutter(4096)


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
    assert isinstance(run, PublishRun)
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


def test_a_run_keeps_to_the_channel_of_its_first_publish() -> None:
    """A publish of another channel ends a run, also after methods whose heads differ in channel or size."""
    large = PUBLISH + bytes(1 << 16)  # no client sends it; its size has three octets
    begins = [(1, PUBLISH), (2, PUBLISH), (2, large)]
    for first, method in begins:
        for second, other in begins:
            cutter = FrameCutter(1 << 20)
            octets = publish(first, b"a", method)
            cutter.feed(octets + publish(second, b"b", other) + publish(first, b"c") + octets)
            expected = [(first, method), (second, other), (first, PUBLISH), (first, method)]
            assert [frame for frame in cut(cutter) if frame[0] == 1] == [(1, *frame) for frame in expected]


def test_lone_publishes_share_a_run() -> None:
    """Each lone publish has its own content in the run; a large body, or others in a row, are not held on to."""
    cutter = FrameCutter(1 << 17)
    batches = [[b"a"], [b"bc"], [bytes(RETAINED_MAX_BYTES + 1)], [b"d"], [b"e", b"fgh"], [b"i"]]
    runs = []
    for bodies in batches:
        cutter.feed(b"".join([publish(1, body) for body in bodies]))
        for frame in cutter.frames():
            run = frame[3]
            assert isinstance(run, PublishRun)
            assert run.bodies == bodies
            assert run.headers == [header_of(len(body)) for body in bodies]
            assert run.largest_bytes == max(map(len, bodies))
            runs.append(run)
    assert [one is other for one, other in pairwise(runs)] == [True, True, False, True, False]


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
    assert [len(run.bodies) for frame in cutter.frames(1) if isinstance(run := frame[3], PublishRun)] == [1]
    assert sum(len(run.bodies) for run in runs_of(cutter) if isinstance(run, PublishRun)) == 3
    cutter.feed(publish(1, b"a") * (RUN_MAX + 1))
    assert [len(run.bodies) for run in runs_of(cutter) if isinstance(run, PublishRun)] == [RUN_MAX, 1]


def test_publishes_that_differ_in_the_body_alone_share_their_method(cutter: FrameCutter) -> None:
    """Method and content header of a publish that repeats those of the first are not copied again."""
    cutter.feed(publish(1, b"a") + publish(1, b"b") + publish(1, b"c"))
    (run,) = runs_of(cutter)
    assert isinstance(run, PublishRun)
    assert (run.payloads, run.headers, run.bodies) == ([PUBLISH] * 3, [header_of(1)] * 3, [b"a", b"b", b"c"])
    assert [payload is run.payloads[0] for payload in run.payloads] == [True] * 3


@pytest.mark.parametrize("at", range(len(publish(1, b"body"))))
def test_a_publish_that_differs_in_one_octet_is_cut_as_by_itself(at: int) -> None:
    """Whichever octet of a publish differs from those of the publishes before it, its frames and error stay."""
    same = publish(1, b"body")
    other = same[:at] + bytes((same[at] ^ 1,)) + same[at + 1 :]
    for before in range(3):
        assert outcome(same * before + other + same) == [*outcome(same) * before, *outcome(other + same)]


def outcome(octets: bytes) -> list[object]:
    """Return the frames in octets, and the error that ends them."""
    cutter, found = FrameCutter(4096), list[object]()
    frames = list[tuple[int, int, bytes]]()
    try:
        cut(cutter, octets, frames)
    except ConnectionFault as error:
        found.append(error.args)
    return [*frames, *found]


def test_what_is_no_publish_is_judged_by_itself() -> None:
    """A method with content that is not a publish is given back and then cut as plain frames."""
    consume = b"\x00\x3c\x00\x14" + PUBLISH[4:]
    cutter = FrameCutter(4096)
    cutter.feed(publish(1, b"a") + publish(1, b"b", consume) + publish(1, b"c"))
    kinds = []
    for kind, _channel, payload, run in cutter.frames():
        kinds.append((kind, len(run.bodies) if isinstance(run, PublishRun) else payload))
        if isinstance(run, PublishRun) and consume in run.payloads:
            cutter.take_back(run, run.payloads.index(consume))
    assert kinds == [(RUN_OF_PUBLISHES, 3), (1, consume), (2, header_of(1)), (3, b"b"), (RUN_OF_PUBLISHES, 1)]


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_what_was_not_taken_of_a_run_comes_again(taken: int) -> None:
    """A caller may accept part of a run; the rest is cut again, also after more bytes."""
    bodies = [b"a", b"bb", b"ccc", b"d"]
    cutter = FrameCutter(4096)
    cutter.feed(b"".join(publish(1, body) for body in bodies[:3]) + publish(1, bodies[3])[:20])
    frame = next(cutter.frames())
    assert isinstance(frame[3], PublishRun)
    cutter.take_back(frame[3], taken)
    assert cut(cutter, publish(1, bodies[3])[20:])[2::3] == [(3, 1, body) for body in bodies[taken:]]


def test_a_run_has_no_frame_beyond_the_limit() -> None:
    """A method frame beyond the limit is refused at its place, after the valid publishes before it."""
    cutter = FrameCutter(100)
    cutter.feed(publish(1, b"a") + publish(1, b"b", PUBLISH + bytes(100)))
    frames = cutter.frames()
    frame = next(frames)
    assert isinstance(frame[3], PublishRun)
    assert frame[3].bodies == [b"a"]
    with pytest.raises(ConnectionFault, match="frame_too_large"):
        next(frames)


def test_iteration_is_taken_up_again(cutter: FrameCutter) -> None:
    """A stopped iteration continues at the next frame, also after more bytes."""
    cutter.feed(b"".join(encode_frame(3, number, b"x") for number in range(4)))
    assert next(iter(cutter.frames()))[1] == 0
    assert cutter.has_frame
    assert cutter.buffered_bytes == 27
    cutter.feed(encode_frame(3, 4, b"x")[:5])
    assert [frame[1] for frame in cut(cutter)] == [1, 2, 3]
    assert not cutter.has_frame
    assert cut(cutter, encode_frame(3, 4, b"x")[5:]) == [(3, 4, b"x")]


def test_budget(cutter: FrameCutter) -> None:
    """The iteration ends with the frame that exhausts the budget."""
    cutter.feed(encode_frame(3, 1, bytes(92)) * 10)
    assert [len(list(cutter.frames(budget))) for budget in (0, 1, 100, 101, 250)] == [0, 1, 1, 2, 3]


def test_budget_with_nothing_left(cutter: FrameCutter) -> None:
    """With budget left, an incomplete frame does not stop the iteration early."""
    cutter.feed(encode_frame(3, 1, b"a"))
    assert len(list(cutter.frames(1000))) == 1
    assert list(cutter.frames(1000)) == []
    octets = encode_frame(3, 1, b"second")
    assert [cut(cutter, octets[at : at + 5]) for at in (0, 5, 10)] == [[], [], [(3, 1, b"second")]]


def test_a_joined_frame_uses_up_the_budget() -> None:
    """A frame that arrived in two chunks counts like any other, and waits while there is no budget."""
    cutter = FrameCutter(1 << 17)
    octets = encode_frame(2, 1, bytes(LARGE_BYTES)) + encode_frame(1, 1, b"next")
    assert cut(cutter, octets[:100]) == []
    cutter.feed(octets[100:])
    assert [len(list(cutter.frames(budget))) for budget in (0, 1, 1)] == [0, 1, 1]


def test_bytes_that_are_fed_amid_an_iteration_wait(cutter: FrameCutter) -> None:
    """Bytes fed after begin() are not cut before the next begin(), which knows its budget."""
    cutter.feed(encode_frame(1, 1, b"a"))
    cutter.begin()
    assert cutter.next_frame() == (1, 1, b"a", None)
    cutter.feed(encode_frame(1, 1, b"b"))
    assert cutter.next_frame()[0] == NO_FRAME
    cutter.begin()
    assert cutter.next_frame() == (1, 1, b"b", None)


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


def test_good_frames_come_before_the_broken_one(cutter: FrameCutter) -> None:
    """Frames before a broken frame are returned, and the error describes the broken one."""
    cutter.feed(encode_frame(1, 1, b"good") + encode_frame(3, 1, b"bad")[:-1] + b"\x00")
    frames = cutter.frames()
    assert next(frames)[2] == b"good"
    with pytest.raises(ConnectionFault) as caught:
        next(frames)
    assert caught.value.reply_code == 501
    assert 'type 3, all octets = <<"bad">>: {invalid_frame_end_marker,0}' in caught.value.reply_text
    assert cutter.next_frame()[0] == NO_FRAME, "what stands behind has no meaning"


def test_too_large_is_known_at_the_head(cutter: FrameCutter) -> None:
    """Seven octets are enough to refuse a frame, without waiting for its payload."""
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


def test_clear_ends_an_iteration(cutter: FrameCutter) -> None:
    """A connection that ends within a frame yields no further frame."""
    cutter.feed(encode_frame(1, 1, b"a") * 5 + b"\x01")
    seen = 0
    for _ in cutter.frames():
        seen += 1
        cutter.clear()
    assert (seen, cutter.buffered_bytes, cutter.amid_message) == (1, 0, False)
    assert cut(cutter, encode_frame(1, 1, b"b")) == [(1, 1, b"b")]


# ---- large frames ----------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * (LARGE_BYTES // 256)
LARGE_FRAMES = [(8, 0, b""), (2, 1, header_of(1)), (3, 1, LARGE), (3, 2, b"x"), (1, 1, PUBLISH), (2, 1, header_of(1))]


def octets_of(frames: list[tuple[int, int, bytes]]) -> bytes:
    """Return the frames as octets."""
    return b"".join(encode_frame(*frame) for frame in frames)


@pytest.mark.parametrize("budget_bytes", [None, 1, LARGE_BYTES])
def test_a_large_frame_may_be_cut_anywhere(budget_bytes: int | None) -> None:
    """A large frame may be split at each octet, between small frames; it is returned in at most two parts."""
    octets = octets_of(LARGE_FRAMES)
    for at in range(1, len(octets), 1 if budget_bytes is None else 5):
        cutter = FrameCutter(1 << 17)
        found: list[tuple[int, int, bytes]] = []
        parts = 0
        for chunk in (octets[:at], octets[at:]):
            cutter.feed(chunk)
            while True:
                for kind, channel, payload, part in cutter.frames(budget_bytes):
                    if isinstance(part, memoryview):
                        parts += 1
                        add_part(found, channel, part)
                    else:
                        found.append((kind, channel, payload))
                if not cutter.has_frame:
                    break
        assert (found, cutter.buffered_bytes) == (LARGE_FRAMES, 0), f"cut at {at}"
        assert parts <= 2


@pytest.mark.parametrize("size", [1, 1000, 4096, LARGE_BYTES - 1])
def test_a_large_frame_in_many_chunks(size: int) -> None:
    """The frames are the same, and nearly all that has arrived of a large one is returned at once."""
    octets = octets_of(LARGE_FRAMES * 3)
    cutter = FrameCutter(1 << 17)
    found: list[tuple[int, int, bytes]] = []
    for at in range(0, len(octets), size):
        cut(cutter, octets[at : at + size], found)
        assert cutter.buffered_bytes < 7 + FRONT_BYTES + max(size, 14)
    assert found == LARGE_FRAMES * 3


def test_the_parts_of_a_large_frame_are_not_copied() -> None:
    """A part is a view of the chunk that it arrived in, unless it is a small share of that."""
    octets = octets_of(LARGE_FRAMES)
    for behind, is_view in ((b"", True), (bytes(4 * LARGE_BYTES), False)):
        cutter = FrameCutter(1 << 17)
        cutter.feed(octets[:60])
        list(cutter.frames())
        chunk = octets[60:] + behind
        cutter.feed(chunk)
        part = next(cutter.frames())[3]
        assert isinstance(part, memoryview)
        assert (part.obj is chunk, bytes(part)) == (is_view, LARGE[23:])


def test_the_last_octet_of_a_large_frame_waits_for_the_end_octet() -> None:
    """No message is complete before its last frame was found to be whole."""
    octets = octets_of(LARGE_FRAMES[:3])
    for end in (b"\xce", b"\x00"):
        cutter = FrameCutter(1 << 17)
        found = cut(cutter, octets[:-1])
        assert found[-1] == (3, 1, LARGE[:-1])
        assert (cutter.has_frame, cutter.buffered_bytes) == (False, 1)
        if end == b"\xce":
            assert cut(cutter, end, found) == LARGE_FRAMES[:3]
        else:
            with pytest.raises(ConnectionFault, match=r"first 16 octets = <<0,1,2,3,.*invalid_frame_end_marker,0"):
                cut(cutter, end, found)
            assert cutter.broken


def test_a_large_frame_waits_for_the_budget() -> None:
    """A large frame waits for budget, of which it uses up an eighth of its octets; more bytes may follow it."""
    octets = octets_of([LARGE_FRAMES[2]] * 16)
    cutter = FrameCutter(1 << 17)
    cutter.feed(octets[:-5])
    assert list(cutter.frames(0)) == []
    assert (cutter.has_frame, cutter.buffered_bytes, cutter.spared_bytes) == (True, len(octets) - 5, 0)
    assert parts_of(cutter, LARGE_BYTES + 8 * 8) == [LARGE] * 8
    assert cutter.spared_bytes == 8 * LARGE_BYTES * 7 // 8
    assert parts_of(cutter, 1) == [LARGE]
    assert parts_of(cutter) == [LARGE] * 6 + [LARGE[:-4]]
    assert cut(cutter, octets[-5:]) == [(3, 1, LARGE[-4:])]


def test_an_iteration_may_end_at_a_large_frame() -> None:
    """The next iteration returns what follows a part of a large frame; clear() drops all of it."""
    octets = octets_of(LARGE_FRAMES)
    cutter = FrameCutter(1 << 17)
    cut(cutter, octets[:100])
    cutter.feed(octets[100:])
    found: object = next(cutter.frames())[3]
    assert found == LARGE[63:]
    assert cut(cutter) == LARGE_FRAMES[3:]
    cut(cutter, octets[:100])
    cutter.feed(octets[100:])
    cutter.clear()
    assert (cutter.buffered_bytes, cutter.has_frame, cut(cutter)) == (0, False, [])
    assert cut(cutter, octets) == LARGE_FRAMES


def test_a_body_that_looks_like_frames_is_none() -> None:
    """More bytes may come while a part of a large frame waits for the budget."""
    body = bytes(50) + encode_frame(3, 1, bytes(LARGE_BYTES))[:100] + b"\xce" * 2 * LARGE_BYTES
    octets = encode_frame(3, 1, body)
    cutter = FrameCutter(1 << 17)
    found = b""
    for end, budget_bytes in ((57, None), (157, 0), (len(octets), None)):
        cutter.feed(octets[len(found) + cutter.buffered_bytes + (7 if found else 0) : end])
        found += b"".join(part for part in parts_of(cutter, budget_bytes) if isinstance(part, memoryview))
    assert found == body


def test_methods_behind_a_large_frame_are_not_upcoming() -> None:
    """A frame-like part of a body is not a frame."""
    ack = encode_frame(1, 1, b"\x00\x3c\x00\x50" + bytes(9))
    body = ack * (LARGE_BYTES // len(ack) + 1)
    octets = encode_frame(3, 1, body)
    cutter = FrameCutter(1 << 17)
    cutter.feed(octets[: 7 + 10 * len(ack)])
    list(cutter.frames())
    cutter.feed(octets[7 + 10 * len(ack) :])
    assert cutter.upcoming(5) == []


def test_output_is_joined_but_for_what_is_large() -> None:
    """Large pieces are handed on unchanged, and the output between them is joined."""
    assert join_small([], []) == []
    assert join_small([b"a", memoryview(b"bc")[1:], b"d"], []) == [b"acd"]
    body = memoryview(LARGE)
    pieces = join_small([b"a", b"b", body, b"c", LARGE, b"d", b"e"], [2, 4])
    assert pieces == [b"ab", LARGE, b"c", LARGE, b"de"]
    assert pieces[1] is body
    assert pieces[3] is LARGE


def test_where_the_octets_of_a_message_end_is_known() -> None:
    """Within a frame, or with more frames of a message to come, they end amid a message."""
    whole = publish(1, b"body")
    ends = [len(encode_frame(1, 1, PUBLISH)), len(whole) - len(encode_frame(3, 1, b"body"))]
    for end in (3, ends[0] - 1, *ends, len(whole) - 1):
        cutter = FrameCutter(4096)
        cut(cutter, whole[:end])
        assert cutter.amid_message
        cut(cutter, whole[end:] + encode_frame(8, 0, b""))
        assert not cutter.amid_message
    cut(cutter, whole * 2)
    assert not cutter.amid_message
