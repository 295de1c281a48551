"""Slot files: rows are read as they were written, and damaged rows are named."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.slot_files.slot_file import INDEX_ROW, PERSISTENT, REDELIVERED, BadSlotFile, SlotMeta
from broker.slot_files.slot_file_writer import SlotFileWriter
from broker.slot_files.slot_view import STEP_BYTES, SlotRow, open_slot
from broker.store.files import Files
from broker.store.memory_files import MemoryFiles
from broker.store.record import encode_route
from tests.slot_folders import STORE

PATH = Path("/1.slot")
FIRST = 10

Rows = list[SlotRow]


def written(rows: Rows, *, seal: int = 3, end: int | None = None) -> bytes:
    """Return a slot file with the rows."""
    files = MemoryFiles()
    files.folders.add(PATH.parent)
    writer = SlotFileWriter(files, PATH, SlotMeta(STORE, seal, "/é", "audit", 7, FIRST))
    for row in rows:
        route = encode_route(row.exchange.decode(), row.key.decode())
        writer.add(row.message_id, row.timestamp_ms, row.flags, route, row.header, row.body)
    meta, size_bytes, crc = writer.finish(FIRST + len(rows) if end is None else end)
    block = files.read(PATH)
    assert len(block) == size_bytes
    view = open_slot(block, crc)
    assert view.meta == meta
    return block


def row(number: int, body: bytes = b"body", key: bytes = b"a.b", flags: int = PERSISTENT) -> SlotRow:
    """Return a row; the number is its offset from the first id."""
    return SlotRow(FIRST + number, 1000 + number, flags, b"topic", key, b"header", body)


names = st.text(max_size=60).map(str.encode)
some_rows = st.lists(
    st.builds(
        SlotRow,
        st.integers(0, (1 << 64) - 1),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.sampled_from([0, PERSISTENT, REDELIVERED, PERSISTENT | REDELIVERED]),
        names,
        names,
        st.binary(max_size=50),
        st.binary(max_size=300),
    ),
    max_size=20,
)


@given(some_rows)
def test_any_rows_come_back(rows: Rows) -> None:
    """Rows with any ids, routes, headers and bodies are read as written, and none is damaged."""
    view = open_slot(written(rows))
    assert list(view) == rows
    assert view.verify() == []
    stamps = [one.timestamp_ms for one in rows] or [0]
    assert (view.meta.count, view.meta.first_ts_ms, view.meta.last_ts_ms) == (len(rows), min(stamps), max(stamps))


def test_the_documented_layout() -> None:
    """A reader that uses only the documented offsets finds everything."""
    block = written([row(0, b"one"), row(2, b"three", b"k" * 200, REDELIVERED)], end=15)
    assert struct.unpack_from("<8sHHI16sQQQQ", block) == (
        b"SLOTMQ\0S",
        1,
        64,
        0,
        bytes.fromhex(STORE),
        3,
        7,
        FIRST,
        0,
    )
    index_at, meta_at, rows, meta_len, rows_crc, index_crc, meta_crc, zeros, magic = struct.unpack(
        "<QQIIIII20s8s", block[-64:]
    )
    assert (rows, zeros, magic) == (2, bytes(20), b"SLOTMQ\0E")
    assert (rows_crc, index_crc, meta_crc) == (
        crc32c(block[:index_at]),
        crc32c(block[index_at:meta_at]),
        crc32c(block[meta_at : meta_at + meta_len]),
    )
    second = struct.unpack_from("<QqIIIIBBBB4s", block, index_at + 40)
    at = second[2]
    whole = b"\x05topic\xc8" + b"k" * 200 + b"header" + b"three"
    assert second == (12, 1002, at, 6, 5, crc32c(whole), 5, 200, REDELIVERED, 0, bytes(4))
    assert block[at:index_at] == whole
    assert block[meta_at : meta_at + meta_len].decode() == (
        f'{{"store":"{STORE}","seal":3,"vhost":"/é","queue":"audit","number":7,'
        '"first":10,"end":15,"count":2,"first_ts_ms":1000,"last_ts_ms":1002,"incarnation":""}'
    )


def test_more_than_a_block(tmp_path: Path) -> None:
    """A file of several blocks, with a body longer than a block, is read from a memory map."""
    path = tmp_path / "1.slot"
    writer = SlotFileWriter(Files(), path, SlotMeta(STORE, 1, "/", "audit", 1, 0))
    bodies = [bytes([number % 251]) * (3 << 20 if number == 40 else 50_000) for number in range(80)]
    for number, body in enumerate(bodies):
        writer.add(number, number, 0, encode_route("", "q"), b"", body)
    _, size_bytes, crc = writer.finish(80)
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped) == size_bytes
        view = open_slot(mapped, crc)
        assert view._rows_crc == crc32c(mapped[: view.index_at])
        assert view.verify() == []
        assert [one.body for one in view] == bodies
        view.buffer.release()


def test_a_file_never_reaches_two_gibibytes() -> None:
    """A row that would need the 32nd bit of an offset is refused, and the file continues without it."""
    files = MemoryFiles()
    files.folders.add(PATH.parent)
    writer = SlotFileWriter(files, PATH, SlotMeta(STORE, 1, "/", "audit", 1, 0))
    writer._at = (1 << 31) - 1 - len(b"\x00\x00header" + b"x" * 9)
    with pytest.raises(OverflowError):
        writer.add(1, 0, 0, encode_route("", ""), b"header", b"x" * 9)
    assert writer.rows == 0
    writer.add(1, 0, 0, encode_route("", ""), b"header", b"x" * 8)
    assert writer.rows == 1


def test_verify_names_the_damaged_rows() -> None:
    """Each byte of the rows belongs to one row, and verify names exactly that row when the byte is wrong."""
    rows = [row(number, b"x" * (5 + number)) for number in range(4)]
    block = written(rows)
    view = open_slot(block)
    owner = {}
    for number, entry in enumerate(INDEX_ROW.iter_unpack(view.index)):
        for at in range(entry[2], entry[2] + 2 + entry[3] + entry[4] + entry[6] + entry[7]):
            owner[at] = number
    assert sorted(owner) == list(range(64, view.index_at))
    for at, number in owner.items():
        damaged = bytearray(block)
        damaged[at] ^= 0x10
        assert open_slot(bytes(damaged)).verify() == [number]
    damaged = bytearray(block)
    for number in (1, 3):
        damaged[next(at for at in owner if owner[at] == number)] ^= 1
    found = open_slot(bytes(damaged))
    assert found.verify() == [1, 3]
    assert list(found)[::2] == [rows[0], rows[2]]


def test_any_bit_outside_the_rows_is_noticed() -> None:
    """A flipped bit in header, index, meta or tail makes the file unreadable.

    The checksum of all rows is the exception, because each row has its own.
    """
    rows = [row(0), row(1)]
    block = written(rows)
    crc = crc32c(block[-64:])
    index_at = open_slot(block).index_at
    rows_crc = range(len(block) - 64 + 24, len(block) - 64 + 28)
    for at in [*range(64), *range(index_at, len(block))]:
        for bit in range(8):
            damaged = bytearray(block)
            damaged[at] ^= 1 << bit
            if at in rows_crc:
                view = open_slot(bytes(damaged))
                assert (view.verify(), list(view)) == ([], rows)
                with pytest.raises(BadSlotFile, match="not the file that was sealed"):
                    open_slot(bytes(damaged), crc)
                continue
            with pytest.raises(BadSlotFile):
                open_slot(bytes(damaged))


def test_a_cut_file_is_noticed() -> None:
    """A file with missing or additional bytes at its end is refused."""
    block = written([row(0), row(1)])
    for size in range(len(block)):
        with pytest.raises(BadSlotFile):
            open_slot(block[:size])
    with pytest.raises(BadSlotFile):
        open_slot(block + block[-64:])


def test_a_later_format_is_named() -> None:
    """A file of a later format is reported as such, not as damaged."""
    block = bytearray(written([row(0)]))
    block[8] = 2
    with pytest.raises(BadSlotFile, match="newer SlotMQ, format 2; this version reads up to 1"):
        open_slot(bytes(block))


@pytest.mark.parametrize("text", ["{", "[]", "7", "{}", '{"store": 7}'])
def test_a_description_of_another_form_is_damage(text: str) -> None:
    """Text that is no JSON, no object, or lacks a field or has one of another type, is refused."""
    fields = json.loads(SlotMeta(STORE, 3, "/", "audit", 7, FIRST).to_json())
    whole = json.dumps({**fields, **json.loads(text)}) if "7}" in text else text
    with pytest.raises(BadSlotFile, match="its meta cannot be read"):
        SlotMeta.from_json(whole.encode())


def test_a_large_file_is_checked_in_steps() -> None:
    """Damage behind the first step is found, and every step is told."""
    block = bytearray(written([row(0, bytes(STEP_BYTES)), row(1, b"the end")]))
    passed: list[None] = []
    assert open_slot(block).verify(lambda: passed.append(None)) == []
    assert len(passed) == 2
    block[block.rfind(b"the end")] ^= 1
    assert open_slot(block).verify() == [1]
