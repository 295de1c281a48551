"""A transaction in the log: one record around the records that count together or not at all. Pure: bytes in, bytes out.

    TRANSACTION record: 36 bytes as every record has, then its records as they would stand alone, but for the bit INNER

Each inner record is whole in itself, so a queue log points at it as at any other. The bit tells it from one that stands
alone: behind a damaged record the next boundary is looked for, and it must not be one within a transaction.
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

__all__ = ["encode_inner", "encode_transaction_head", "inner_records"]

_PREFIX: Final = Struct(">II").pack  # length and checksum
_BYTE: Final = Struct("B").pack


def encode_inner(record: bytes) -> bytes:
    """Return a whole record as it stands in a transaction; its length is the same."""
    kind = record[KIND_AT]
    assert kind not in (MARK, TRANSACTION)
    content = b"".join((record[PREFIX_BYTES:KIND_AT], _BYTE(kind | INNER), record[KIND_AT + 1 :]))
    return _PREFIX(len(content), crc32c(content)) + content


def encode_transaction_head(synced: int, records: Iterable[bytes]) -> bytes:
    """Return what stands in front of a transaction's records.

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

    Raises: ValueError when they are not what a writer of transactions writes: then none of them may be applied.
    """
    found = []
    at = HEAD_BYTES
    while at < len(record):
        length = HEAD.unpack_from(record, at)[0] if len(record) - at >= HEAD_BYTES else 0
        inner = record[at : at + PREFIX_BYTES + length]
        if length < LENGTH_MIN or not is_whole(inner) or not inner[KIND_AT] & INNER:
            raise ValueError(f"what stands {at} bytes into the transaction is no record of one")
        found.append((at, inner))
        at += len(inner)
    return found
