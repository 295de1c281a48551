"""Encode field tables, which `amqp/tables.py` reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from broker.amqp.wire import DECIMAL, LENGTH, SHORT_STRING_MAX_BYTES, TABLE_NESTING_MAX, TIMESTAMP

LONG: Final = struct.Struct(">q")
DOUBLE: Final = struct.Struct(">d")

LONG_MAX: Final = (1 << 63) - 1


def encode_value(value: Any, levels: int = TABLE_NESTING_MAX) -> bytes:
    """Return a value, preceded by its type octet.

    An integer becomes a long, if it fits. As in the reader, a bytearray stands for a byte array, and bytes for a long
    string that is not UTF-8.
    Raises: ValueError for a value that a table cannot contain, or one with more than `levels` nested tables and arrays.
    """
    match value:
        case str():
            return b"S" + counted(encode_text(value))
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return encode_number(value)
        case dict():
            return b"F" + encode_table(value, levels)
        case list() | tuple():
            inner = _inner(levels)
            return b"A" + counted(b"".join([encode_value(one, inner) for one in value]))  # depth: levels
        case datetime():
            return encode_time(value)
        case None:
            return b"V"
        case bytearray():
            return b"x" + counted(value)
        case bytes():
            return b"S" + counted(value)
        case float():
            return b"d" + DOUBLE.pack(value)
        case Decimal():
            return encode_decimal(value)
    raise ValueError(f"a field table cannot hold a {type(value).__name__}")


def encode_table(table: Mapping[str, Any], levels: int = TABLE_NESTING_MAX) -> bytes:
    """Return a table, preceded by its length. Raises: ValueError, as `encode_value`."""
    inner = _inner(levels)
    return counted(b"".join([encode_entry(key, value, inner) for key, value in table.items()]))


def encode_entry(key: str, value: Any, levels: int = TABLE_NESTING_MAX - 1) -> bytes:
    """Return one entry of a table. Raises: ValueError, as `encode_value`."""
    return encode_short_text(key) + encode_value(value, levels)


def _inner(levels: int) -> int:
    if levels <= 0:
        raise ValueError(f"a field table has at most {TABLE_NESTING_MAX} levels")
    return levels - 1


def encode_short_text(text: str) -> bytes:
    """Return a short string. Raises: ValueError when it has more than 255 octets."""
    octets = encode_text(text)
    if len(octets) > SHORT_STRING_MAX_BYTES:
        raise ValueError(f"a short string cannot hold {len(octets)} octets")
    return bytes([len(octets)]) + octets


def encode_text(text: str) -> bytes:
    """Return text in UTF-8; octets that were read as surrogate escapes are restored."""
    return text.encode("utf-8", "surrogateescape")


def encode_number(number: int) -> bytes:
    """Return a long, or a timestamp for a larger number, which the reader returns as a number. Raises: ValueError."""
    if -LONG_MAX - 1 <= number <= LONG_MAX:
        return b"l" + LONG.pack(number)
    if 0 < number <= 2 * LONG_MAX + 1:
        return b"T" + TIMESTAMP.pack(number)
    raise ValueError(f"a field table cannot hold the number {number}")


def encode_time(time: datetime) -> bytes:
    """Return a timestamp, in whole seconds since 1970."""
    seconds = time.timestamp()
    if seconds < 0:
        raise ValueError(f"a field table cannot hold the time {time}")
    return b"T" + TIMESTAMP.pack(int(seconds))


def encode_decimal(number: Decimal) -> bytes:
    """Return a decimal, which is unsigned in RabbitMQ. Raises: ValueError for one that does not fit."""
    sign, digits, exponent = number.as_tuple()
    if sign or not isinstance(exponent, int) or not -255 <= exponent <= 0:
        raise ValueError(f"a field table cannot hold the decimal {number}")
    whole = int("".join(map(str, digits)))
    if whole >> 32:
        raise ValueError(f"a field table cannot hold the decimal {number}")
    return b"D" + DECIMAL.pack(-exponent, whole)


def counted(octets: bytes | bytearray) -> bytes:
    """Return octets preceded by their length."""
    return LENGTH.pack(len(octets)) + octets
