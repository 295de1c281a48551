"""Chunks: what was encoded is read back, and damage is told."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.chunk import HEAD_BYTES, Chunk, ChunkWriter, DamagedChunk

Written = tuple[int, int, int, bytes, bytes, bytes]

messages = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0, 7]),
        st.sampled_from([0, 9]),
        st.sampled_from([b"\x01a\x01b", b"\x00\x01q"]),
        st.sampled_from([b"header", b"another header"]),
        st.binary(max_size=40),
    ),
    max_size=30,
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Written], dict[int, list[int]]]:
    """Draw messages, and which of them go to which levels."""
    written = draw(messages)
    places = st.lists(st.integers(0, len(written) - 1), unique=True).map(sorted) if written else st.just([])
    levels = draw(st.dictionaries(st.integers(-(1 << 63), (1 << 63) - 1), places, max_size=4))
    return written, levels


def encoded(written: list[Written], levels: dict[int, list[int]], wanted: bytearray | None = None) -> bytes:
    """Return the chunk of messages."""
    writer = ChunkWriter()
    for message in written:
        writer.add(*message)
    return writer.encode(list(levels), [array("I", records) for records in levels.values()], wanted)


def read(chunk: Chunk, record: int) -> Written:
    """Return one record as it was written."""
    kind = chunk.kinds[chunk.run_of()[record]]
    body = chunk.data[chunk.ends[record] : chunk.ends[record + 1]]
    return kind.timestamp_ms, kind.expires_ms, kind.due_ms, kind.route, kind.header, body


@given(batch=batches())
def test_a_chunk_is_read_as_it_was_written(batch: tuple[list[Written], dict[int, list[int]]]) -> None:
    """Every message of every level is read back, in order."""
    written, levels = batch
    chunk = Chunk(encoded(written, levels))
    chunk.check()
    assert [read(chunk, record) for record in range(chunk.records)] == written
    assert {level: list(chunk.of(level)) for level in levels} == levels
    assert chunk.bytes == len(chunk.data)


@given(batch=batches(), data=st.data())
def test_any_changed_bit_is_noticed(batch: tuple[list[Written], dict[int, list[int]]], data: st.DataObject) -> None:
    """One flipped bit anywhere raises the error of a damaged chunk, and so do missing bytes."""
    whole = encoded(*batch)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    torn = bytearray(whole)
    torn[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedChunk):
        Chunk(bytes(torn)).check()
    with pytest.raises(DamagedChunk):
        Chunk(whole[: data.draw(st.integers(0, len(whole) - 1))]).check()


def test_the_front_alone_has_the_index() -> None:
    """Places, sizes and moments are known without the bodies, which cannot be read then."""
    whole = encoded([(1, 20, 0, b"r", b"h", b"four"), (1, 0, 30, b"r", b"h", b"")], {5: [0, 1]})
    front = Chunk(whole[: len(whole) - 4])
    sizes = [front.ends[record + 1] - front.ends[record] for record in front.of(5)]
    kinds = [front.kinds[front.run_of()[record]] for record in front.of(5)]
    assert sizes == [4, 0]
    assert [(kind.expires_ms, kind.due_ms) for kind in kinds] == [(20, 0), (0, 30)]
    with pytest.raises(DamagedChunk, match="bytes"):
        front.check()


def test_messages_with_equal_properties_share_them() -> None:
    """A message costs 8 bytes beside its body when its neighbours are alike, though their headers are other objects."""
    messages = [(1, 0, 0, b"route", bytes(bytearray(b"header")), b"") for _ in range(1001)]
    one, all_of_them = encoded(messages[:1], {1: [0]}), encoded(messages, {1: list(range(1001))})
    assert len(all_of_them) - len(one) == 8 * 1000


def test_a_settled_message_leaves_no_body() -> None:
    """The body of a message that no one will read is left out; the others stay."""
    whole = encoded([(1, 0, 0, b"r", b"h", b"gone"), (1, 0, 0, b"r", b"h", b"kept")], {5: [0, 1]}, bytearray((0, 1)))
    chunk = Chunk(whole)
    chunk.check()
    assert [read(chunk, record)[5] for record in (0, 1)] == [b"", b"kept"]


def test_a_newer_format_is_refused() -> None:
    """The error of a chunk that a newer broker wrote names both formats."""
    whole = bytearray(encoded([], {}))
    whole[4] = 2
    with pytest.raises(DamagedChunk, match="its format is 2, and this broker reads format 1"):
        Chunk(bytes(whole))


def test_a_level_that_a_chunk_does_not_have_is_damage() -> None:
    """A slot that points to a chunk without its level is told."""
    with pytest.raises(DamagedChunk, match="no message of level 3"):
        Chunk(encoded([], {})).of(3)
    assert len(encoded([], {})) == HEAD_BYTES
