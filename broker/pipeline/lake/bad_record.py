"""Unreadable messages: the rows of their table, one for a record or for a whole slot file, and the limit of a batch."""

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
        ("offset", pa.int64()),  # the message id; for a whole slot its first message id
        ("rows", pa.int64()),  # the number of messages that the record covers
        ("ts", INSTANT),
        ("reason", pa.string()),
        ("raw", pa.binary()),  # 1 MiB at most; null for a whole slot
        ("query", pa.string()),  # the archive that found it
        ("incarnation", pa.string()),  # of the start of the broker that wrote the slot
    ]
)
BAD_DDL: Final = ddl_of(BAD_SCHEMA, BAD_SCHEMA.names)

FEW: Final = 10  # any share but 0% allows this many: in a small batch one message is many percent
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One record. Shapes: the fields are the columns. Units: ``ts`` is microseconds since 1970."""

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
    """The limit of unreadable messages in a batch. Shapes: a number as written, 5, or a share, 0.1%."""

    text: str
    messages: int | None
    share: Fraction | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the limit that a text describes. Raises: LakeRefused."""
        text = text.strip()
        percent = _SHARE.fullmatch(text)
        if percent is not None and Fraction(percent[1]) <= 100:
            return cls(text, None, Fraction(percent[1]) / 100)
        if text.isascii() and text.isdigit():
            return cls(text, int(text), None)
        raise LakeRefused(f"{text!r} is neither a number of messages nor a share such as 0.1%")

    def exceeded(self, bad: int, messages: int) -> bool:
        """Return whether `bad` of `messages` messages exceed the limit."""
        if self.share is None:
            return bad > (self.messages or 0)
        few = FEW if self.share else 0
        return bad > few and Fraction(bad) > self.share * messages

    def __str__(self) -> str:
        return self.text
