"""The decoder against the slot file's own reader and the broker's property decoder, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp.content_header import KINDS, decode_properties
from broker.amqp.header_edit import cut_properties
from broker.amqp.wire import FLAGS, PROPERTIES_AT
from broker.pipeline.source.header_json import table_to_json
from broker.pipeline.source.message_run import BATCH_MAX_BYTES, BATCH_MAX_ROWS, batches
from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS
from broker.pipeline.source.slot_rows import SlotRows
from broker.slot_files.slot_file import BadSlotFile, SlotMeta
from broker.slot_files.slot_file_writer import SlotFileWriter
from broker.slot_files.slot_view import SlotRow, SlotView, open_slot
from broker.store.memory_files import MemoryFiles
from tests.unit.pipeline.test_header_json import TABLE

STORE = "5107a0b1c2d3e4f5061728394a5b6c7d"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORT = st.one_of(st.text(max_size=20).map(str.encode), st.binary(max_size=20), st.binary(min_size=255, max_size=255))
KIND_VALUES = {
    "shortstr": SHORT.map(lambda octets: bytes([len(octets[:255])]) + octets[:255]),
    "octet": st.binary(min_size=1, max_size=1),
    "timestamp": st.one_of(st.integers(0, 1 << 36), st.integers(0, (1 << 64) - 1)).map(
        lambda at: at.to_bytes(8, "big")
    ),
    "table": TABLE,
}


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Draw content headers with any properties and any octets."""
    flags, octets = 0, b""
    for flag, _, kind in KINDS:
        if draw(st.booleans()):
            flags |= flag
            octets += draw(KIND_VALUES[kind])
    return b"\x00\x3c" + bytes(10) + FLAGS.pack(flags) + octets


INCARNATION = "1" * 32
ROWS = st.lists(st.tuples(SHORT, SHORT, headers(), st.binary(max_size=40), st.integers(0, 3)), max_size=8)


def slot_of(rows: Sequence[tuple[bytes, bytes, bytes, bytes, int]], first: int = 7) -> bytes:
    """Return a slot file with these rows: exchange, key, header, body, flags."""
    files = MemoryFiles()
    path = Path("/slots/3.slot")
    files.make_folder(path.parent)
    writer = SlotFileWriter(files, path, SlotMeta(STORE, 3, "/v", "tap ü", 1, first, incarnation=INCARNATION))
    for number, (exchange, key, header, body, flags) in enumerate(rows):
        route = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
        writer.add(first + 2 * number, 1_700_000_000_000 + number, flags, route, header, body)
    writer.finish(first + 2 * len(rows))
    return files.read(path)


def expected(row: SlotRow) -> dict[str, Any]:
    """Return the columns of a row, by the broker's readers of single messages."""
    properties = decode_properties(row.header)
    moment = properties.timestamp if isinstance(properties.timestamp, datetime) else None  # null beyond the calendar
    texts = {
        name: getattr(properties, name)
        for name in ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id")
    }
    return {
        "vhost": "/v",
        "queue": "tap ü",
        "slot": 7,
        "seal": 3,
        "offset": row.message_id,
        "ts": EPOCH + timedelta(milliseconds=row.timestamp_ms),
        "exchange": row.exchange.decode("utf-8", "replace"),
        "routing_key": row.key.decode("utf-8", "replace"),
        "redelivered": bool(row.flags & 2),
        "priority": properties.priority,
        "delivery_mode": properties.delivery_mode,
        **texts,
        "type": properties.message_type,
        "user_id": properties.user_id,
        "app_id": properties.app_id,
        "app_ts": moment,
        "headers": None if properties.headers is None else table_to_json(cut_properties(row.header)["headers"]),
        "properties_raw": row.header[PROPERTIES_AT:],
        "body": row.body,
        "store": STORE,
        "incarnation": INCARNATION,
    }


def read_back(found: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the rows of batches."""
    return [row for batch in found for row in batch.to_pylist()]


@settings(max_examples=50)
@given(ROWS)
def test_every_column_says_what_the_brokers_own_readers_say(
    rows: list[tuple[bytes, bytes, bytes, bytes, int]],
) -> None:
    """Messages with any octets in names and texts, any properties and any body length decode the same."""
    view = open_slot(slot_of(rows))
    found = list(batches(SlotRows(view)))
    assert all(batch.schema.equals(ARROW_SCHEMA) for batch in found)
    for batch in found:
        batch.validate(full=True)
    assert read_back(found) == [expected(row) for row in view]
    assert SlotRows(view).bad() == []


@settings(max_examples=30)
@given(ROWS, st.data())
def test_columns_and_rows_that_are_asked_for_are_those_that_come(
    rows: list[tuple[bytes, bytes, bytes, bytes, int]], data: st.DataObject
) -> None:
    """Any selection of columns, in any order, and of rows is returned as requested."""
    view = open_slot(slot_of(rows))
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1))
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True).map(sorted)) if rows else []
    found = read_back(list(batches(SlotRows(view), columns, np.array(numbers, np.int64))))
    whole = [expected(row) for row in view]
    assert found == [{name: whole[number][name] for name in columns} for number in numbers]
    assert all(list(row) == columns for row in found)


def plain(body: bytes = b"", properties: bytes = b"\x10\x00\x02") -> tuple[bytes, bytes, bytes, bytes, int]:
    """Return a row with delivery mode 2, or with these properties."""
    return b"ex", b"key", b"\x00\x3c" + bytes(10) + properties, body, 1


def test_batches_are_cut_by_rows() -> None:
    """A batch has at most 10,000 rows, and no row is missing or repeated."""
    view = open_slot(slot_of([plain()] * (2 * BATCH_MAX_ROWS + 1)))
    found = list(batches(SlotRows(view), ["offset"]))
    assert [batch.num_rows for batch in found] == [BATCH_MAX_ROWS, BATCH_MAX_ROWS, 1]
    assert [row["offset"] for row in read_back(found)] == [row.message_id for row in view]


def test_batches_are_cut_by_bytes() -> None:
    """A batch has at most 8 MiB, except for a single longer row."""
    half = bytes(BATCH_MAX_BYTES // 2 - 100)
    view = open_slot(slot_of([plain(half), plain(half), plain(half), plain(bytes(BATCH_MAX_BYTES)), plain()]))
    assert [batch.num_rows for batch in batches(SlotRows(view), ["body"])] == [2, 1, 1, 1]


def damaged(file: bytes, view: SlotView, number: int, octet: int = 0) -> bytes:
    """Return the file with one changed octet in a row's body."""
    row = list(view)[number]
    at = file.index(row.body) + octet
    return file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]


def test_a_damaged_row_is_named_and_the_others_are_whole() -> None:
    """One wrong octet makes one bad row, which contains the present octets."""
    file = slot_of([plain(b"body %d" % number) for number in range(5)])
    view = open_slot(damaged(file, open_slot(file), 3))
    [bad] = SlotRows(view).bad()
    assert (bad.position, bad.reason) == (3, "its checksum is wrong")
    assert bad.raw.endswith(b"cody 3")


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (b"", "properties"),
        (b"\x80", "properties"),
        (b"\x80\x00", "properties"),
        (b"\x80\x00\x05abc", "properties"),
        (b"\x10\x00\x02\x00", "properties"),
        (b"\x10\x01\x02", "properties"),
        (b"\x20\x00\xff\xff\xff\xff", "properties"),
        (b"\x00\x40\x00\x00", "properties"),
        (b"\x20\x00\x00\x00\x00\x03\x01aq", "headers"),
        (b"\x20\x00\x00\x00\x00\x02\x05a", "headers"),
    ],
)
def test_properties_that_cannot_be_decoded_make_a_bad_row(properties: bytes, reason: str) -> None:
    """Undecodable properties make a bad row, and decoding it anyway ends without an error."""
    view = open_slot(slot_of([plain(b"a"), plain(b"b", properties), plain(b"c")]))
    assert [(bad.position, bad.reason) for bad in SlotRows(view).bad()] == [(1, f"its {reason} cannot be decoded")]
    found = read_back(list(batches(SlotRows(view))))
    assert [row["body"] for row in found] == [b"a", b"b", b"c"]
    assert [row["delivery_mode"] for row in found][::2] == [2, 2]


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_any_octets_for_properties_are_bad_exactly_if_the_broker_cannot_decode_them(found: list[bytes]) -> None:
    """A row is bad exactly if the broker's decoder fails for it."""
    view = open_slot(slot_of([plain(properties=octets) for octets in found]))
    wrong = []
    for number, row in enumerate(view):
        try:
            decode_properties(row.header)
        except Exception:  # noqa: BLE001 - any failure counts
            wrong.append(number)
    assert [bad.position for bad in SlotRows(view).bad()] == wrong
    assert sum(batch.num_rows for batch in batches(SlotRows(view))) == len(found)


def test_the_octets_of_a_bad_row_are_kept_up_to_a_mebibyte() -> None:
    """A bad row keeps at most 1 MiB, however long it is."""
    [bad] = SlotRows(open_slot(slot_of([plain(bytes(3 << 20), properties=b"")]))).bad()
    assert len(bad.raw) == 1 << 20


def test_an_index_that_points_elsewhere_is_no_slot() -> None:
    """An index with offsets outside the rows is refused before it is used."""
    view = open_slot(slot_of([plain(b"body")]))
    octets = bytearray(view.buffer)
    octets[view.index_at + 24 : view.index_at + 28] = b"\xff\xff\xff\x7f"  # the body length
    view.buffer = memoryview(bytes(octets))
    with pytest.raises(BadSlotFile, match="points outside its rows"):
        SlotRows(view)


def test_each_distinct_table_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distinct headers table is decoded once, so the cost of a slot follows the distinct tables."""
    calls: list[bytes] = []

    def counting(table: bytes) -> str:
        calls.append(table)
        return table_to_json(table)

    monkeypatch.setattr("broker.pipeline.source.slot_rows.table_to_json", counting)
    one, other = (b"\x20\x00\x00\x00\x00\x03\x01%cV" % letter for letter in b"ab")
    rows = SlotRows(open_slot(slot_of([plain(properties=one), plain(properties=other)] * 15_000)))
    assert rows.bad() == []
    assert sum(batch.num_rows for batch in batches(rows, ["headers"])) == 30_000
    assert len(calls) == 2
