"""Writing field tables: each value gets the type that reads back as it, or is refused."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.amqp.header_facts import MEASURED_DEPTH_MAX
from broker.amqp.table_writer import encode_short_text, encode_table, encode_value
from broker.amqp.tables import TableReader
from broker.amqp.wire import TABLE_NESTING_MAX

WRITTEN: list[tuple[Any, bytes]] = [
    (None, b"V"),
    (True, b"t\x01"),
    (False, b"t\x00"),
    (-2, b"l" + b"\xff" * 7 + b"\xfe"),
    ((1 << 63) - 1, b"l\x7f" + b"\xff" * 7),
    (1 << 63, b"T\x80" + bytes(7)),
    (0.5, b"d" + struct.pack(">d", 0.5)),
    (Decimal("3.14"), b"D\x02\x00\x00\x01\x3a"),
    (Decimal(0), b"D\x00\x00\x00\x00\x00"),
    (Decimal(4294967295).scaleb(-255), b"D\xff\xff\xff\xff\xff"),
    ("añ", b"S\x00\x00\x00\x03a\xc3\xb1"),
    ("\udcff", b"S\x00\x00\x00\x01\xff"),
    (b"\xff\x00", b"S\x00\x00\x00\x02\xff\x00"),
    (bytearray(b"\x00"), b"x\x00\x00\x00\x01\x00"),
    (datetime(2009, 2, 13, 23, 31, 30, tzinfo=UTC), b"T" + struct.pack(">Q", 1234567890)),
    ([True, None, []], b"A\x00\x00\x00\x08t\x01VA\x00\x00\x00\x00"),
    ((1,), b"A\x00\x00\x00\x09l" + bytes(7) + b"\x01"),
    ({"a": {"b": None}}, b"F\x00\x00\x00\x0a\x01aF\x00\x00\x00\x03\x01bV"),
]


@pytest.mark.parametrize(("value", "octets"), WRITTEN)
def test_values(value: Any, octets: bytes) -> None:
    """A value is written with the type of RabbitMQ's dialect that holds it."""
    assert encode_value(value) == octets


READABLE = {str(place): value for place, (value, _) in enumerate(WRITTEN) if value not in ("\udcff", (1,))}


def test_what_is_written_is_read() -> None:
    """A table with every type is read back equal, with its key order and binary values."""
    table = {"\udcff\udcfe": 1, **READABLE}
    octets = encode_table(table)
    read, end = TableReader(octets, errors="surrogateescape").table(0, len(octets))
    assert end == len(octets)
    assert list(read.items()) == list(table.items())


@pytest.mark.parametrize(
    "value",
    [
        1 << 64,
        -(1 << 63) - 1,
        Decimal(-1),
        Decimal("1E+2"),
        Decimal("NaN"),
        Decimal(1 << 32),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        object(),
        {"x" * 256: 1},
    ],
)
def test_what_a_table_cannot_hold(value: Any) -> None:
    """A value that no type can hold is refused, never cut."""
    with pytest.raises(ValueError, match="cannot hold"):
        encode_value([value])


def test_short_text() -> None:
    """A short string has at most 255 octets."""
    assert encode_short_text("ñ") == b"\x02\xc3\xb1"
    assert encode_short_text("x" * 255) == b"\xff" + b"x" * 255
    with pytest.raises(ValueError, match="cannot hold 256 octets"):
        encode_short_text("x" * 254 + "ñ")


def test_what_is_written_can_be_read_again_however_deep() -> None:
    """The writer refuses what the reader of headers would."""
    for inner in ({"a": 1}, [1]):
        table: Any = {"a": inner}
        for _ in range(TABLE_NESTING_MAX - 2):
            table = {"a": table}
        octets = encode_table(table)
        assert TableReader(octets, MEASURED_DEPTH_MAX, 1 << 20).table(0, len(octets))[0] == table
        with pytest.raises(ValueError, match="levels"):
            encode_table({"a": table})
