"""The generator's offset parser against frames that pamqp encoded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, body, commands, frame, header, heartbeat

from broker.perf.faults import BrokenStream, Refusal
from broker.perf.scanner import Confirms, Scanner

CHANNEL = 2


def delivery(
    tag: int,
    key: str = "bench.01.0001",
    size: int = 16,
    frame_max: int = 100_000,
    mode: int = 1,
    filling: bytes = b"",
) -> bytes:
    """Return a delivery as pamqp encodes it, the body split at `frame_max`."""
    content = filling or bytes(size)
    method = commands.Basic.Deliver("ctag", tag, redelivered=False, exchange="bench", routing_key=key)
    properties = header.ContentHeader(body_size=size, properties=commands.Basic.Properties(delivery_mode=mode))
    pieces = [frame.marshal(method, CHANNEL), frame.marshal(properties, CHANNEL)]
    room = frame_max - 8
    pieces += [frame.marshal(body.ContentBody(content[at : at + room]), CHANNEL) for at in range(0, size, room)]
    return b"".join(pieces)


def confirm(tag: int, *, multiple: bool) -> bytes:
    """Return a confirm as pamqp encodes it."""
    return frame.marshal(commands.Basic.Ack(tag, multiple), 1)


HEARTBEAT = frame.marshal(heartbeat.Heartbeat(), 0)


def feed(scanner: Scanner, stream: bytes, cuts: Iterable[int] = ()) -> None:
    """Feed a stream in pieces, as a socket does, and keep what the scanner does not consume."""
    buffer = bytearray()
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    for start, stop in pairwise(edges):
        buffer += stream[start:stop]
        del buffer[: scanner.scan(buffer, len(buffer))]
    assert not buffer, "whole frames were left over"


def test_equal_deliveries_are_counted_without_walking_each() -> None:
    """A buffer of equal deliveries is counted by stride, with the sum of the body sizes."""
    scanner = Scanner()
    feed(scanner, b"".join(delivery(tag) for tag in range(1, 1001)))
    assert (scanner.deliveries, scanner.body_bytes) == (1000, 16_000)
    assert scanner.walked < 10


def test_one_other_frame_costs_few_walks() -> None:
    """A heartbeat amid a buffer does not make the scanner parse every other frame."""
    stream = b"".join(delivery(tag) for tag in range(1, 501)) + HEARTBEAT
    stream += b"".join(delivery(tag) for tag in range(501, 1001))
    scanner = Scanner()
    feed(scanner, stream)
    assert scanner.deliveries == 1000
    assert scanner.walked < 20


def test_incomplete_delivery_is_not_counted() -> None:
    """A delivery without its last byte does not count, and its bytes stay for the next read."""
    stream = b"".join(delivery(tag) for tag in range(1, 11))
    scanner = Scanner()
    done = scanner.scan(bytearray(stream[:-1]), len(stream) - 1)
    assert scanner.deliveries == 9
    assert done < len(stream) - 1


messages = st.one_of(
    st.tuples(st.just("d"), st.sampled_from([0, 16, 300]), st.sampled_from(["k", "a.b", "a.c"])),
    st.tuples(st.just("c"), st.booleans(), st.none()),
    st.tuples(st.just("h"), st.none(), st.none()),
)


@settings(max_examples=60)
@given(st.lists(messages, max_size=40), st.lists(st.integers(0, 5000), max_size=12), st.integers(1, 4))
def test_any_mixture_in_any_pieces_counts_the_same(
    mixture: list[tuple[str, int | bool | None, str | None]], cuts: list[int], runs: int
) -> None:
    """Deliveries of varying sizes, confirms and heartbeats, split anywhere, are all counted once."""
    stream, tag, confirmed, body_bytes = bytearray(), 0, 0, 0
    for kind, what, key in mixture:
        for _ in range(runs):
            if kind == "d":
                tag += 1
                body_bytes += int(what or 0)
                stream += delivery(tag, key=key or "", size=int(what or 0))
            elif kind == "c":
                confirmed += 1
                stream += confirm(confirmed, multiple=bool(what))
            else:
                stream += HEARTBEAT
    scanner = Scanner()
    feed(scanner, bytes(stream), cuts)
    assert (scanner.deliveries, scanner.body_bytes) == (tag, body_bytes)
    assert scanner.confirms.count == confirmed


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (commands.Channel.Close(404, "NOT_FOUND - no exchange 'x'", 60, 40), "404 NOT_FOUND - no exchange 'x'"),
        (commands.Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0), "320 CONNECTION_FORCED - bye"),
        (commands.Basic.Cancel("ctag", nowait=True), "ctag"),
    ],
)
def test_refusal_ends_the_run_with_the_brokers_words(method: base.Frame, said: str) -> None:
    """The error has the broker's reply code and text."""
    scanner = Scanner()
    stream = bytearray(delivery(1) + frame.marshal(method, 1))
    with pytest.raises(Refusal, match=said):
        scanner.scan(stream, len(stream))
    assert scanner.deliveries == 1


def test_wrong_end_octet_is_noticed_in_the_stride() -> None:
    """A corrupted frame end between equal deliveries is detected."""
    good = b"".join(delivery(tag) for tag in range(1, 4))
    stream = bytearray(good + delivery(4)[:-1] + b"\x00" + delivery(5))
    scanner = Scanner()
    with pytest.raises(BrokenStream, match="0xCE"):
        scanner.scan(stream, len(stream))
    assert scanner.deliveries == 3


def test_a_block_has_its_reason_until_it_ends() -> None:
    """connection.blocked has its reason, until connection.unblocked."""
    scanner = Scanner()
    for method, reason in ((commands.Connection.Blocked("memory"), "memory"), (commands.Connection.Unblocked(), "")):
        feed(scanner, frame.marshal(method, 0))
        assert scanner.blocked_for == reason


def test_a_lenient_scanner_counts_what_another_one_raises() -> None:
    """Nacks count by the messages that they settle, returns by their content, and deliveries beside them count too."""
    nack = frame.marshal(commands.Basic.Nack(5, True, False), 1)
    returned = frame.marshal(commands.Basic.Return(312, "NO_ROUTE", "bench", "k"), 1) + delivery(1)[len(_method(1)) :]
    scanner = Scanner(lenient=True)
    feed(scanner, confirm(2, multiple=True) + nack + returned + delivery(1) + returned, cuts=[30, 60, 90])
    assert (scanner.nacked, scanner.returned, scanner.deliveries, scanner.confirms.count) == (3, 2, 1, 5)
    for stream in (nack, returned):
        with pytest.raises(BrokenStream, match="not expected"):
            feed(Scanner(), stream)


def _method(tag: int) -> bytes:
    """Return the method frame of a delivery."""
    method = commands.Basic.Deliver("ctag", tag, redelivered=False, exchange="bench", routing_key="bench.01.0001")
    return frame.marshal(method, CHANNEL)


@pytest.mark.parametrize("cuts", [[], [5, 70, 71, 500, 3001]])
@pytest.mark.parametrize("frame_max", [100_000, 20])
def test_every_body_is_shown_once(cuts: list[int], frame_max: int) -> None:
    """Every body is passed once, whatever the splits and the number of frames."""
    seen: list[bytes] = []

    def watch(buffer: bytes | bytearray, at: int, stride: int, count: int) -> None:
        seen.extend(bytes(buffer[at + stride * number : at + stride * number + 8]) for number in range(count))

    stream = b"".join(delivery(tag, frame_max=frame_max, filling=b"%08d-waiting" % tag) for tag in range(1, 41))
    scanner = Scanner(on_bodies=watch)
    feed(scanner, stream, cuts)
    assert scanner.deliveries == 40
    assert seen == [b"%08d" % tag for tag in range(1, 41)]
    assert scanner.walked == 40 if frame_max == 20 else scanner.walked < 40


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40))
def test_count_is_that_of_the_set_of_confirmed_numbers(confirms: list[tuple[int, bool]]) -> None:
    """Single, multiple and repeated confirms in any order count every number once."""
    counted = Confirms()
    known: set[int] = set()
    for tag, multiple in confirms:
        counted.add(tag, multiple=multiple)
        known |= set(range(1, tag + 1)) if multiple else {tag}
        assert counted.count == len(known)
        assert all(number > counted.watermark + 1 for number in counted.above)
