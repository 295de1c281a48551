"""A transaction in the log: one record around records that are applied together or not at all. Pure.

    TRANSACTION record: the 36 bytes of every record, then its records as outside of it, but with the bit INNER

Each inner record is whole in itself, so a queue log may point at it. The bit tells it from a record outside of
transactions: the search for the next record after damage must not stop within a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from crc32c import crc32c

from broker.store.record import (
    HEAD,
    HEAD_BYTES,
    INNER,
    KIND_AT,
    LENGTH_MIN,
    MARK,
    PREFIX_BYTES,
    TRANSACTION,
    is_whole,
)

_PREFIX: Final = Struct(">II").pack  # length and checksum
_BYTE: Final = Struct("B").pack


def encode_inner(record: bytes) -> bytes:
    """Return a whole record in its form within a transaction, which has the same length."""
    kind = record[KIND_AT]
    assert kind not in (MARK, TRANSACTION)
    content = b"".join((record[PREFIX_BYTES:KIND_AT], _BYTE(kind | INNER), record[KIND_AT + 1 :]))
    return _PREFIX(len(content), crc32c(content)) + content


def encode_transaction_head(synced: int, records: Iterable[bytes]) -> bytes:
    """Return the bytes in front of the records of a transaction.

    Shapes: records are those that `encode_inner` made, in order.
    """
    front = HEAD.pack(0, 0, synced, 0, TRANSACTION, 0, 0, 0, 0)[PREFIX_BYTES:]
    length, checksum = len(front), crc32c(front)
    for record in records:
        length += len(record)
        checksum = crc32c(record, checksum)
    return _PREFIX(length, checksum) + front


def inner_records(record: bytes) -> list[tuple[int, bytes]]:
    """Return (place, record) of each record in a whole TRANSACTION record; the place counts from its beginning.

    Raises: ValueError when no writer could have written them; then apply none of them.
    """
    found = []
    at = HEAD_BYTES
    while at < len(record):
        length = HEAD.unpack_from(record, at)[0] if len(record) - at >= HEAD_BYTES else 0
        inner = record[at : at + PREFIX_BYTES + length]
        if length < LENGTH_MIN or not is_whole(inner) or not inner[KIND_AT] & INNER:
            raise ValueError(f"there is no inner record {at} bytes into the transaction")
        found.append((at, inner))
        at += len(inner)
    return found
