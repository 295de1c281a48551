"""Read field tables in one pass, checking every length, the depth and the number of entries.

The types are those of RabbitMQ's dialect (its 0-9-1 errata), not those of the specification. Tables are read by offset
here, because a codec that slices the rest of the buffer at each entry is quadratic: 4,000 booleans before one long
string, 128 KiB in all, take pamqp 300 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from broker.amqp.errors import ConnectionFault
from broker.amqp.wire import DECIMAL, LENGTH

TABLE_DEPTH_MAX: Final = 16
TABLE_ENTRIES_MAX: Final = 4096

UNSIGNED_64: Final = struct.Struct(">Q")

# Type octet -> the name of the type in RabbitMQ's texts (rabbit_binary_parser).
TYPE_NAMES: Final[dict[int, str]] = {
    ord("t"): "bool",
    ord("b"): "byte",
    ord("B"): "unsignedbyte",
    ord("s"): "short",
    ord("u"): "unsignedshort",
    ord("I"): "signedint",
    ord("i"): "unsignedint",
    ord("l"): "long",
    ord("L"): "long",
    ord("f"): "float",
    ord("d"): "double",
    ord("D"): "decimal",
    ord("T"): "timestamp",
    ord("V"): "void",
    ord("S"): "longstr",
    ord("x"): "binary",
    ord("A"): "array",
    ord("F"): "table",
}

LONG_STRING: Final = ord("S")
BYTES: Final = ord("x")
ARRAY: Final = ord("A")
TABLE: Final = ord("F")


def read_timestamp(payload: bytes, at: int) -> datetime | int:
    """Return the time, or the number of seconds if datetime cannot represent it."""
    seconds: int = UNSIGNED_64.unpack_from(payload, at)[0]
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def read_decimal(payload: bytes, at: int) -> Decimal:
    """Return the decimal, whose digits are unsigned as in RabbitMQ."""
    scale, digits = DECIMAL.unpack_from(payload, at)
    return Decimal(digits).scaleb(-scale)


def reader(layout: str) -> Callable[[bytes, int], Any]:
    """Return a function that reads one value of a struct layout."""
    unpack_from = struct.Struct(layout).unpack_from
    return lambda payload, at: unpack_from(payload, at)[0]


# Type octet -> width in octets, and a function that reads a value. `l` and `L` are both signed in RabbitMQ.
FIXED: Final[dict[int, tuple[int, Callable[[bytes, int], Any]]]] = {
    ord("t"): (1, lambda payload, at: payload[at] != 0),
    ord("b"): (1, reader(">b")),
    ord("B"): (1, reader(">B")),
    ord("s"): (2, reader(">h")),
    ord("u"): (2, reader(">H")),
    ord("I"): (4, reader(">i")),
    ord("i"): (4, reader(">I")),
    ord("l"): (8, reader(">q")),
    ord("L"): (8, reader(">q")),
    ord("f"): (4, reader(">f")),
    ord("d"): (8, reader(">d")),
    ord("D"): (5, read_decimal),
    ord("T"): (8, read_timestamp),
    ord("V"): (0, lambda _payload, _at: None),
}


def syntax_error(reason: str) -> ConnectionFault:
    """Return the 502 for a malformed payload."""
    return ConnectionFault(502, reason)


class Entry(NamedTuple):
    """One entry of a table: its key, and the offsets of its start, of its value's type octet and of its end."""

    key: bytes
    start: int
    value_at: int
    end: int


class TableReader:
    """A reader of the tables of one payload.

    Cost: linear in the payload's octets.
    Invariant: no value extends beyond the table or array that contains it.
    """

    __slots__ = ("_depth_max", "_entries_left", "_entries_max", "_errors", "_payload")

    def __init__(
        self,
        payload: bytes,
        depth_max: int = TABLE_DEPTH_MAX,
        entries_max: int = TABLE_ENTRIES_MAX,
        errors: str = "strict",
    ) -> None:
        """Shapes: `errors` is the codec's error handler for keys that are not UTF-8: "strict" refuses them."""
        self._payload = payload
        self._depth_max = depth_max
        self._entries_max = self._entries_left = entries_max
        self._errors = errors

    def table(self, at: int, limit: int) -> tuple[dict[str, Any], int]:
        """Return the table whose length octets begin at `at`, and its end.

        Raises: 502 for a malformed table, or one with too many entries or levels.
        """
        return self._table(at, limit, 1)

    def skip_table(self, at: int, limit: int) -> int:
        """Check what table() checks, except that keys are UTF-8, and return the end of the table."""
        return self._skip(at, limit, 1, keyed=True)

    def entries(self, at: int) -> list[Entry]:
        """Return the entries of a measured table whose length octets begin at `at`."""
        payload = self._payload
        end = at + 4 + int(LENGTH.unpack_from(payload, at)[0])
        at += 4
        entries: list[Entry] = []
        while at < end:
            start = at
            value_at = start + 1 + payload[start]
            fixed = FIXED.get(payload[value_at])
            # A type without a fixed width is a counted sequence of octets.
            at = value_at + (1 + fixed[0] if fixed else 5 + int(LENGTH.unpack_from(payload, value_at + 1)[0]))
            entries.append(Entry(payload[start + 1 : value_at], start, value_at, at))
        return entries

    def value(self, at: int, limit: int) -> Any:
        """Return the value whose type octet is at `at`.

        Raises: 502, as table() does.
        """
        return self._value(at, limit, 1)[0]

    def _extent(self, at: int, limit: int) -> tuple[int, int]:
        """Return start and end of the octets whose count is at `at`."""
        start = at + 4
        if start > limit:
            raise syntax_error("field table is cut short")
        end = start + int(LENGTH.unpack_from(self._payload, at)[0])
        if end > limit:
            raise syntax_error("length in field table exceeds the available octets")
        return start, end

    def _enter(self, depth: int) -> None:
        if depth > self._depth_max:
            raise syntax_error(f"field table is nested more than {self._depth_max} levels deep")

    def _count_entry(self) -> None:
        if self._entries_left == 0:
            raise syntax_error(f"field table has more than {self._entries_max} entries")
        self._entries_left -= 1

    def _table(self, at: int, limit: int, depth: int) -> tuple[dict[str, Any], int]:
        self._enter(depth)
        at, end = self._extent(at, limit)
        payload = self._payload
        table: dict[str, Any] = {}
        while at < end:
            self._count_entry()
            key_at = at + 1
            at = key_at + payload[at]
            if at >= end:
                raise syntax_error("field table is cut short")
            try:
                key = payload[key_at:at].decode("utf-8", self._errors)
            except UnicodeDecodeError:
                raise syntax_error("field name is not UTF-8") from None
            table[key], at = self._value(at, end, depth)
        return table, end

    def _array(self, at: int, limit: int, depth: int) -> tuple[list[Any], int]:
        self._enter(depth)
        at, end = self._extent(at, limit)
        array: list[Any] = []
        while at < end:
            self._count_entry()
            value, at = self._value(at, end, depth)
            array.append(value)
        return array, end

    def _value(self, at: int, limit: int, depth: int) -> tuple[Any, int]:
        kind = self._payload[at]
        at += 1
        fixed = FIXED.get(kind)
        if fixed is not None:
            width, read = fixed
            if at + width > limit:
                raise syntax_error("field value is cut short")
            return read(self._payload, at), at + width
        if kind == LONG_STRING:
            start, end = self._extent(at, limit)
            return read_text(self._payload[start:end]), end
        if kind == BYTES:
            start, end = self._extent(at, limit)
            return bytearray(self._payload[start:end]), end
        if kind == TABLE:
            return self._table(at, limit, depth + 1)
        if kind == ARRAY:
            return self._array(at, limit, depth + 1)
        raise unknown_type(kind)

    def _skip(self, at: int, limit: int, depth: int, keyed: bool) -> int:
        self._enter(depth)
        at, end = self._extent(at, limit)
        payload = self._payload
        while at < end:
            self._count_entry()
            if keyed:
                at += 1 + payload[at]
                if at >= end:
                    raise syntax_error("field table is cut short")
            kind = payload[at]
            at += 1
            fixed = FIXED.get(kind)
            if fixed is not None:
                at += fixed[0]
                if at > end:
                    raise syntax_error("field value is cut short")
            elif kind in (LONG_STRING, BYTES):
                at = self._extent(at, end)[1]
            elif kind in (TABLE, ARRAY):
                at = self._skip(at, end, depth + 1, keyed=kind == TABLE)  # depth: checked by _enter
            else:
                raise unknown_type(kind)
        return end


def read_text(octets: bytes) -> str | bytes:
    """Return a long string as text, or as octets if it is not UTF-8: the type has no character set."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets


def unknown_type(kind: int) -> ConnectionFault:
    """Return the 502 for an unknown type octet."""
    return syntax_error(f"unknown field type {chr(kind)!r}")
