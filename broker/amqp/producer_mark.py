"""The sequence number of a publish, in two headers: `x-producer` names the producer, `x-seq` is the number.

Only producer and broker use these headers. Consumers get the message without them, so a consumer that republishes it
does not accidentally publish as the producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from broker.amqp.tables import LONG_STRING, Entry
from broker.amqp.wire import FLAGS, LENGTH, PROPERTIES_AT

PRODUCER, SEQUENCE = b"x-producer", b"x-seq"
# This header says that the message has a headers table even without the mark, so that an empty table is kept.
OWN_TABLE: Final = b"x-producer-table"
SEQUENCE_OCTETS: Final = bytes([len(SEQUENCE)]) + SEQUENCE
PRODUCER_MAX_BYTES: Final = 255

HEADERS_FLAG: Final = 1 << 13
# Type octet -> layout of the number, in RabbitMQ's dialect; clients choose the type.
LAYOUTS: Final[dict[int, Struct]] = {
    ord(kind): Struct(">" + layout) for kind, layout in zip("bBsuIilL", "bBhHiIqq", strict=True)
}


def template_of(properties: bytes) -> tuple[bytes, bytes] | None:
    """Return the octets before and after the first number that may be `x-seq`, or None if there is no such number."""
    at = properties.find(SEQUENCE_OCTETS)
    if at < 0:
        return None
    at += len(SEQUENCE_OCTETS) + 1
    layout = LAYOUTS.get(properties[at - 1]) if at <= len(properties) else None
    return None if layout is None else (properties[:at], properties[at + layout.size :])


def mark_entries(header: bytes, named: Mapping[bytes, Entry]) -> tuple[str, int, Struct] | str:
    """Return the producer, and the offset and layout of the number, or the text of the 406.

    Shapes: `named` contains the entries `x-producer` and `x-seq`.
    """
    producer_entry, sequence_entry = named[PRODUCER], named[SEQUENCE]
    octets = header[producer_entry.value_at + 5 : producer_entry.end]
    if header[producer_entry.value_at] != LONG_STRING or not 0 < len(octets) <= PRODUCER_MAX_BYTES:
        return f"invalid message: x-producer must be a text of 1 to {PRODUCER_MAX_BYTES} octets"
    try:
        producer = octets.decode()
    except UnicodeDecodeError:
        return "invalid message: x-producer is not UTF-8"
    layout = LAYOUTS.get(header[sequence_entry.value_at])
    if layout is None:
        return "invalid message: x-seq must be a whole number from 0 to 2^63-1"
    return producer, sequence_entry.value_at + 1, layout


def without_mark(header: bytes, table_at: int, entries: list[Entry]) -> tuple[bytes, int]:
    """Return a measured header without the producer's entries, and the offset of its headers table.

    Shapes: `entries` are those of the table at `table_at`; the offset is 0 if the table was removed.
    """
    end = table_at + LENGTH.size + int(LENGTH.unpack_from(header, table_at)[0])
    kept = b"".join([header[entry.start : entry.end] for entry in entries if entry.key not in HIDDEN])
    if kept or any(entry.key == OWN_TABLE for entry in entries):
        return b"".join((header[:table_at], LENGTH.pack(len(kept)), kept, header[end:])), table_at
    flags = FLAGS.unpack_from(header, PROPERTIES_AT)[0] & ~HEADERS_FLAG
    front = header[:PROPERTIES_AT] + FLAGS.pack(flags)
    return b"".join((front, header[PROPERTIES_AT + FLAGS.size : table_at], header[end:])), 0


HIDDEN: Final = frozenset((PRODUCER, SEQUENCE, OWN_TABLE))
