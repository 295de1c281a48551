"""Content headers: relayed as they came, measured once, decoded only when somebody asks.

A content header is class, weight, body size, property flags, and the flagged properties in order (AMQP 0-9-1 section
4.2.6.1). Which properties class basic has is section 1.8.
"""

from __future__ import annotations

import struct
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from pamqp import commands

from broker.amqp.errors import ConnectionFault
from broker.amqp.tables import TABLE_DEPTH_MAX, TABLE_ENTRIES_MAX, TableReader, read_timestamp, syntax_error

Properties = commands.Basic.Properties

PROPERTIES_AT: Final = 12
DELIVERY_MODE_PERSISTENT: Final = 2
FLAGS: Final = struct.Struct(">H")
# The two lowest bits are no properties of class basic: one is unused, one would announce another flags word.
UNKNOWN_FLAGS: Final = 0b11

FLAG_OF: Final[dict[str, int]] = dict(Properties.flags)
KINDS: Final[tuple[tuple[int, str, str], ...]] = tuple(
    (flag, name, Properties.amqp_type(name)) for name, flag in FLAG_OF.items()
)
NOT_YET_PROPERTIES: Final = ("expiration", "user_id")
NOT_YET_HEADERS: Final = ("CC", "BCC")
NOT_YET_HEADER_OCTETS: Final = (b"\x02CC", b"\x03BCC")  # as short strings: a header without them need not be decoded
WIDTHS: Final = {"octet": 1, "timestamp": 8}

KNOWN_MAX: Final = 1024
KNOWN_MAX_BYTES: Final = 512
# Bounds for a header that was measured when it came in, by whatever limits the broker has.
MEASURED_DEPTH_MAX: Final = 64
MEASURED_ENTRIES_MAX: Final = 1 << 31


class HeaderGauge:
    """Measures content headers, and remembers those it let pass: publishers repeat their properties.

    Invariant: `known` holds at most 1,024 properties of at most 512 octets, each within the limits.
    """

    __slots__ = ("_depth_max", "_entries_max", "known")

    def __init__(self, depth_max: int, entries_max: int) -> None:
        self._depth_max = depth_max
        self._entries_max = entries_max
        # Property octets -> whether they say persistent. The hot path asks here first.
        self.known: dict[bytes, bool] = {}

    def persistent(self, header: bytes) -> bool:
        """Returns whether the message is persistent, having measured the header.

        Raises: 502 when the properties do not fill the header exactly, or their table passes the limits; 540 for a
            property that asks for what is not there yet.
        """
        properties = header[PROPERTIES_AT:]
        persistent = self.known.get(properties)
        if persistent is None:
            persistent = check_content_header(header, self._depth_max, self._entries_max)
            refuse_not_yet(header)
            if len(properties) <= KNOWN_MAX_BYTES:
                if len(self.known) >= KNOWN_MAX:
                    self.known.clear()
                self.known[properties] = persistent
        return persistent


def refuse_not_yet(header: bytes) -> None:
    """Refuses what would be ignored otherwise: a client that counts on it must not be told that it has it.

    Raises: 540 for expiration and user-id, and for the headers CC and BCC (RabbitMQ's sender-selected distribution).
    """
    flags = property_flags(header)
    for name in NOT_YET_PROPERTIES:
        if flags & FLAG_OF[name]:
            raise ConnectionFault(540, f"property '{name}' is not supported")
    if flags & FLAG_OF["headers"] and any(name in header for name in NOT_YET_HEADER_OCTETS):
        for name in decode_properties(header).headers or {}:
            if name in NOT_YET_HEADERS:
                raise ConnectionFault(540, f"header '{name}' is not supported")


@lru_cache(maxsize=8)
def gauge_of(depth_max: int = TABLE_DEPTH_MAX, entries_max: int = TABLE_ENTRIES_MAX) -> HeaderGauge:
    """Returns the gauge for these limits, which all connections with the same limits share."""
    return HeaderGauge(depth_max, entries_max)


def property_flags(header: bytes) -> int:
    """Returns the flags word.

    Raises: 502 when there is none, or when it announces properties that class basic does not have.
    """
    if len(header) < PROPERTIES_AT + 2:
        raise syntax_error("content header without property flags")
    flags: int = FLAGS.unpack_from(header, PROPERTIES_AT)[0]
    if flags & UNKNOWN_FLAGS:
        raise syntax_error("content header announces properties that class basic does not have")
    return flags


def check_content_header(header: bytes, depth_max: int = TABLE_DEPTH_MAX, entries_max: int = TABLE_ENTRIES_MAX) -> bool:
    """Returns whether the delivery mode is persistent, having measured every property without decoding one.

    Raises: 502 when the properties do not fill the header exactly.
    """
    flags = property_flags(header)
    at = PROPERTIES_AT + 2
    limit = len(header)
    persistent = False
    for flag, name, kind in KINDS:
        if not flags & flag:
            continue
        if at >= limit:
            raise syntax_error(f"property {name} is cut short")
        if name == "delivery_mode":
            persistent = header[at] == DELIVERY_MODE_PERSISTENT
        if kind == "table":
            at = TableReader(header, depth_max, entries_max).skip_table(at, limit)
        else:
            at += WIDTHS.get(kind) or 1 + header[at]
        if at > limit:
            raise syntax_error(f"property {name} is cut short")
    if at != limit:
        raise syntax_error(f"{limit - at} octets behind the properties")
    return persistent


def decode_properties(
    header: bytes, depth_max: int = MEASURED_DEPTH_MAX, entries_max: int = MEASURED_ENTRIES_MAX
) -> Properties:
    """Returns the properties of a content header payload.

    Text that is not UTF-8 is shown with replacement characters, because RabbitMQ relays it too; a timestamp beyond the
    calendar is None. So whatever check_content_header() let pass can be decoded.
    """
    flags = property_flags(header)
    at = PROPERTIES_AT + 2
    limit = len(header)
    properties = Properties()
    for flag, name, kind in KINDS:
        if not flags & flag:
            continue
        if at >= limit:
            raise syntax_error(f"property {name} is cut short")
        value: Any
        if kind == "table":
            value, at = TableReader(header, depth_max, entries_max, errors="replace").table(at, limit)
        else:
            start, at = at, at + (WIDTHS.get(kind) or 1 + header[at])
            if at > limit:
                raise syntax_error(f"property {name} is cut short")
            if kind == "octet":
                value = header[start]
            elif kind == "timestamp":
                moment = read_timestamp(header, start)
                value = moment if isinstance(moment, datetime) else None
            else:
                value = header[start + 1 : at].decode("utf-8", "replace")
        setattr(properties, name, value)
    if at != limit:
        raise syntax_error(f"{limit - at} octets behind the properties")
    return properties
