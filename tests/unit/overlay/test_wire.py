"""The packets of the overlay as bytes, whole and in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.packets import (
    Ack,
    Conjunction,
    Data,
    Hello,
    Nack,
    Packet,
    Resync,
    Space,
    StreamName,
    StreamRun,
    Update,
    UpdateAck,
    VectorChange,
)
from broker.overlay.wire import OTHER_PACKETS_BYTES, VERSION, DamagedPacket, PacketPieces, decode, encode
from tests.unit.overlay.test_sink import data

NUMBERS = st.integers(0, 2**64 - 1)
TEXTS = st.text(max_size=8)
NAMES = st.lists(TEXTS, max_size=3).map(tuple)
VECTORS = st.dictionaries(TEXTS, NUMBERS, max_size=3)
SPACES = st.builds(Space, TEXTS, TEXTS)
INCARNATIONS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)
STREAMS = st.builds(StreamName, TEXTS, SPACES, NUMBERS)
CONJUNCTIONS = st.lists(st.builds(Conjunction, SPACES, TEXTS), max_size=3).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> StreamRun:
    """Return a run, in which any of the numbers may be silent."""
    first = draw(st.integers(1, 2**63))
    length = draw(st.integers(0, 6))
    numbers = draw(st.sets(st.integers(first, first + length - 1))) if length else set()
    elements = tuple(
        draw(
            st.builds(Data, st.just(number), TEXTS, st.binary(max_size=20), NAMES)
            | st.builds(VectorChange, st.just(number), VECTORS, VECTORS)
        )
        for number in sorted(numbers)
    )
    at, target, lost = draw(NUMBERS), draw(TEXTS), draw(st.booleans())
    vector = draw(st.none() | VECTORS)
    return StreamRun(draw(STREAMS), first, first + length - 1, at, elements, target, lost, vector)


PACKETS = (
    st.builds(Hello, TEXTS, TEXTS, NUMBERS, st.booleans(), st.just(VERSION), st.booleans(), NUMBERS, NUMBERS)
    | st.builds(
        Update,
        NUMBERS,
        st.booleans(),
        st.booleans(),
        CONJUNCTIONS,
        CONJUNCTIONS,
        VECTORS,
        NAMES,
        st.lists(st.tuples(SPACES, NAMES), max_size=2).map(tuple),
        st.lists(SPACES, max_size=2).map(tuple),
        st.none() | NAMES,
        st.none() | NAMES,
    )
    | st.builds(UpdateAck, NUMBERS, NUMBERS)
    | st.just(Resync())
    | runs()
    | st.builds(Nack, STREAMS, NUMBERS, NUMBERS, TEXTS, NUMBERS, NUMBERS, INCARNATIONS)
    | st.builds(Ack, STREAMS, NUMBERS, NUMBERS)
)
STREAM = StreamName("sb1", Space("/", "orders"))
RUN = StreamRun(STREAM, 7, 9, 3, (Data(8, "order.1.paid", b"header and body"),))


@given(packets=st.lists(PACKETS, max_size=4))
def test_what_was_written_is_read(packets: list[object]) -> None:
    """A message carries any packets, in their order."""
    assert decode(b"".join(encode(packet) for packet in packets)) == packets  # type: ignore[arg-type] # builds() is untyped


@given(packet=PACKETS, data=st.data())
def test_a_part_of_a_packet_is_refused(packet: object, data: st.DataObject) -> None:
    """No field is read beyond the end."""
    encoded = encode(packet)  # type: ignore[arg-type] # builds() is untyped
    end = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(DamagedPacket):
        decode(encoded[:end])


@pytest.mark.slow
@given(packet=PACKETS, data=st.data())
def test_damage_raises_nothing_else(packet: object, data: st.DataObject) -> None:
    """A changed byte gives other packets or a DamagedPacket."""
    encoded = bytearray(encode(packet))  # type: ignore[arg-type] # builds() is untyped
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(encoded))
    except DamagedPacket:
        pass


def test_a_short_packet_with_a_longer_length_is_refused() -> None:
    """The length of a packet is that of its fields."""
    ack = encode(Ack(STREAM, 5, 1))
    longer = bytes([*ack[:3], ack[3] + 1, *ack[4:], 0])
    with pytest.raises(DamagedPacket, match="1 bytes follow the last field"):
        decode(longer)


@pytest.mark.parametrize("rest", [b"", b"\1", b"\1\2\3"])
def test_a_hello_of_another_version_is_read_as_far_as_all_versions_agree(rest: bytes) -> None:
    """So the link is refused for the version, and not for damage."""
    hello = encode(Hello("b", "n", 5, leaf=True, version=VERSION + 1))[4:-1] + rest
    assert decode(len(hello).to_bytes(4, "big") + hello) == [Hello("b", "n", 5, leaf=True, version=VERSION + 1)]


def test_an_unknown_kind_is_refused() -> None:
    """A newer broker's packet is not noise."""
    with pytest.raises(DamagedPacket, match="no packet has kind 99"):
        decode(b"\0\0\0\1c")


def test_a_count_larger_than_the_packet_is_refused_at_once() -> None:
    """Four bytes do not make the broker read four billion entries."""
    update = bytearray(encode(Update(1, full=True, last=True)))
    update[15:19] = b"\xff\xff\xff\xff"  # of the added conjunctions: behind length, kind, serial and two flags
    with pytest.raises(DamagedPacket, match="a list of 4294967295 entries does not fit"):
        decode(bytes(update))


@pytest.mark.parametrize(
    "run",
    [
        StreamRun(STREAM, 0, 5, 0),
        StreamRun(STREAM, 7, 5, 0),
        StreamRun(STREAM, 7, 9, 0, (Data(10, "k", b""),)),
        StreamRun(STREAM, 7, 9, 0, (Data(6, "k", b""),)),
        StreamRun(STREAM, 7, 9, 0, (Data(8, "k", b""), Data(8, "k", b""))),
    ],
)
def test_elements_are_within_their_run_and_in_order(run: StreamRun) -> None:
    """The logic behind relies on it."""
    with pytest.raises(DamagedPacket):
        decode(encode(run))


def test_content_is_written_as_it_is() -> None:
    """A view of a buffer needs no copy of its own before, and the reader has its own bytes."""
    viewed = StreamRun(STREAM, 7, 9, 3, (Data(8, "order.1.paid", memoryview(b"header and body")),))
    assert encode(viewed) == encode(RUN)
    assert decode(encode(viewed)) == [RUN]


def test_a_message_without_copies_pays_nothing_for_them() -> None:
    """Each copy adds its own bytes, the first one those of the list too."""
    sizes = [len(encode(StreamRun(STREAM, 8, 8, 3, (Data(8, "k", b"content", copies),)))) for copies in ((), ("to",))]
    assert sizes == [len(encode(RUN)) - len("order.1.paid") - len(b"header and body") + 8, sizes[0] + 4 + 2 + 2]


@given(sizes=st.lists(st.integers(0, 40), max_size=6), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_packets_are_whole_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    """Each piece gives the packets that end in it, in order."""
    packets: list[Packet] = [
        StreamRun(STREAM, 1, size, 0, tuple(data(number) for number in range(1, size + 1))) if size else UpdateAck(size)
        for size in sizes
    ]
    body, pieces, found = b"".join(map(encode, packets)), PacketPieces(1), []
    at = 0
    while at < len(body):
        cut = cuts[at % len(cuts)]
        found += decode(pieces.add(body[at : at + cut]))
        at += cut
    assert found == packets


def test_a_packet_above_the_limit_is_refused_by_its_head() -> None:
    """Nothing of it is kept; the limit leaves room beside the largest message."""
    limit = 1_000 + OTHER_PACKETS_BYTES
    assert PacketPieces(1_000).add((limit - 4).to_bytes(4, "big") + b"\x05") == b""
    with pytest.raises(DamagedPacket, match="a packet of"):
        PacketPieces(1_000).add((limit - 3).to_bytes(4, "big") + b"\x05")
