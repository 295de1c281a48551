"""The table of what could not be read: one row a record, or one for a slot file of which nothing can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from broker.pipeline.source.schema import INSTANT, ddl_of

__all__ = ["BAD_DDL", "BAD_SCHEMA", "BAD_SCHEMA_VERSION", "BadRecord", "bad_batch"]

BAD_SCHEMA_VERSION: Final = 2

BAD_SCHEMA: Final = pa.schema(
    [
        ("store", pa.string()),
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("slot", pa.int64()),
        ("seal", pa.int64()),
        ("row", pa.int64()),  # its number in the slot, from 0 on; null for a whole slot
        ("offset", pa.int64()),  # the message id; of a whole slot its first
        ("rows", pa.int64()),  # how many messages it stands for
        ("ts", INSTANT),
        ("reason", pa.string()),
        ("raw", pa.binary()),  # 1 MiB at most; null for a whole slot
        ("query", pa.string()),  # which archive found it
        ("incarnation", pa.string()),  # of the start of the broker that wrote the slot
    ]
)
BAD_DDL: Final = ddl_of(BAD_SCHEMA, BAD_SCHEMA.names)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One record. Shapes: as the columns. Units: ``ts`` is microseconds since 1970."""

    store: str
    vhost: str
    queue: str
    slot: int
    seal: int
    row: int | None
    offset: int
    rows: int
    ts: int
    reason: str
    raw: bytes | None
    query: str
    incarnation: str | None


def bad_batch(records: Sequence[BadRecord]) -> pa.RecordBatch:
    """Return records as a batch."""
    columns = [pa.array([getattr(record, field.name) for record in records], field.type) for field in BAD_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=BAD_SCHEMA)
