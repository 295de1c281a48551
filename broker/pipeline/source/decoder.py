"""Decodes slot files into Arrow batches.

Each column is picked from the bytes of the slot for a batch of rows at a time; columns that are not requested cost
nothing. Octets of texts that are not UTF-8 (AMQP's short strings have no character set) become replacement characters,
and a headers property that is no table is null; `properties_raw` has the original octets of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import Pick, SlotRows
from broker.slot_files.slot_file import SlotMeta

__all__ = ["BATCH_MAX_BYTES", "BATCH_MAX_ROWS", "batches", "together"]

BATCH_MAX_BYTES: Final = 8 << 20
BATCH_MAX_ROWS: Final = 10_000
GROUP_SLOTS: Final = 1000  # open at a time

Column = Callable[[SlotRows, Pick, int], Any]  # rows, selected rows, and their number; None if all are null


def batches(slot: SlotRows, columns: Sequence[str] = COLUMNS, rows: Any = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of at most 8 MiB or 10,000 rows, and at least one row."""
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    makers = [(_COLUMNS[name], schema.field(name).type) for name in columns]
    for pick, count in _cuts(slot.sizes if rows is None else slot.sizes[rows], rows):
        arrays = []
        for make, kind in makers:
            array = make(slot, pick, count)
            if array is None:
                array = pa.nulls(count, kind)
            arrays.append(array if array.type == kind else array.cast(kind))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def together(slots: Iterable[SlotHandle]) -> Iterator[list[SlotHandle]]:
    """Split slots into runs that are decoded together, of one batch each; a large slot is alone.

    Cost: a decoding takes a millisecond and 30 KB however few its rows are.
    """
    group: list[SlotHandle] = []
    rows = size_bytes = 0
    for slot in slots:
        rows += slot.count
        size_bytes += slot.bytes
        if group and (len(group) >= GROUP_SLOTS or rows > BATCH_MAX_ROWS or size_bytes > BATCH_MAX_BYTES):
            yield group
            group, rows, size_bytes = [], slot.count, slot.bytes
        group.append(slot)
    if group:
        yield group


def _cuts(sizes: Any, rows: Any) -> Iterator[tuple[Pick, int]]:
    ends = np.cumsum(sizes)
    at, done = 0, 0
    while at < len(ends):
        to = int(np.searchsorted(ends, done + BATCH_MAX_BYTES, side="right"))
        to = min(max(to, at + 1), at + BATCH_MAX_ROWS, len(ends))
        yield (slice(at, to) if rows is None else rows[at:to]), to - at
        at, done = to, int(ends[to - 1])


def _meta(column: str, of: Callable[[SlotMeta], Any]) -> Column:
    kind = ARROW_SCHEMA.field(column).type
    return lambda slot, pick, _count: slot.meta(of, kind, pick)


def _text(name: str) -> Column:
    return lambda slot, pick, _count: slot.text(name, pick)


def _octet(name: str) -> Column:
    return lambda slot, pick, _count: slot.octet(name, pick)


_COLUMNS: Final[dict[str, Column]] = {
    "vhost": _meta("vhost", lambda meta: meta.vhost),
    "queue": _meta("queue", lambda meta: meta.queue),
    "slot": _meta("slot", lambda meta: meta.first),
    "seal": _meta("seal", lambda meta: meta.seal),
    "offset": lambda slot, pick, _count: pa.array(slot.ids[pick]),
    "ts": lambda slot, pick, _count: pa.array(slot.ts_ms[pick] * 1000),
    "exchange": lambda slot, pick, _count: slot.exchange(pick),
    "routing_key": lambda slot, pick, _count: slot.routing_key(pick),
    "redelivered": lambda slot, pick, _count: pa.array(slot.redelivered[pick]),
    "priority": _octet("priority"),
    "delivery_mode": _octet("delivery_mode"),
    "content_type": _text("content_type"),
    "content_encoding": _text("content_encoding"),
    "correlation_id": _text("correlation_id"),
    "reply_to": _text("reply_to"),
    "expiration": _text("expiration"),
    "message_id": _text("message_id"),
    "type": _text("message_type"),  # pamqp's name for it
    "user_id": _text("user_id"),
    "app_id": _text("app_id"),
    "app_ts": lambda slot, pick, _count: slot.app_ts(pick),
    "headers": lambda slot, pick, _count: slot.headers(pick),
    "properties_raw": lambda slot, pick, _count: slot.properties_raw(pick),
    "body": lambda slot, pick, _count: slot.body(pick),
    "store": _meta("store", lambda meta: meta.store),
    "incarnation": _meta("incarnation", lambda meta: meta.incarnation or None),
}
