"""What could not be read: the table's rows, one a record or one for a whole slot file, and how many may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

import pyarrow as pa

from broker.pipeline.faults import LakeRefused
from broker.pipeline.source.schema import INSTANT, ddl_of

__all__ = ["BAD_DDL", "BAD_SCHEMA", "FEW", "BadRecord", "BadShare", "bad_batch"]

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

FEW: Final = 10  # what any share but 0% allows: of a small batch one message is many percent
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")


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


@dataclass(frozen=True, slots=True)
class BadShare:
    """How many messages of a batch may be unreadable. Shapes: a number as written, 5, or a share, 0.1%."""

    text: str
    messages: int | None
    share: Fraction | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the limit that a text says. Raises: LakeRefused."""
        text = text.strip()
        percent = _SHARE.fullmatch(text)
        if percent is not None and Fraction(percent[1]) <= 100:
            return cls(text, None, Fraction(percent[1]) / 100)
        if text.isascii() and text.isdigit():
            return cls(text, int(text), None)
        raise LakeRefused(f"{text!r} is neither a number of messages nor a share such as 0.1%")

    def exceeded(self, bad: int, messages: int) -> bool:
        """Return whether so many bad ones of so many messages are too many."""
        if self.share is None:
            return bad > (self.messages or 0)
        few = FEW if self.share else 0
        return bad > few and Fraction(bad) > self.share * messages

    def __str__(self) -> str:
        return self.text
