"""Decode slot files into Arrow batches, and read a task's run of slots.

Only the requested columns are decoded, one batch of rows at a time. AMQP's short strings have no character set: octets
that are not UTF-8 become replacement characters. The column `properties_raw` contains the original properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from broker.pipeline.faults import SlotDamaged, SlotMissing, restated
from broker.pipeline.source.catalog import Catalog, open_catalog, open_handle
from broker.pipeline.source.planner import BatchLimits, Condition, chosen_rows, groups
from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import Pick, SlotRows, joined_rows
from broker.slot_files.slot_file import BadSlotFile, SlotMeta
from broker.slot_files.slot_view import SlotView

BATCH_MAX_BYTES: Final = 8 << 20
BATCH_MAX_ROWS: Final = 10_000
SNAPSHOT_HINT: Final = (
    "a snapshot is kept only for a while (settings taps.snapshot_ms, taps.snapshots_user_max): load the queue again"
)
GROUP_SLOTS: Final = 1000  # the most slots that are open at the same time
TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "user_id", "app_id",
)  # fmt: skip

Column = Callable[[SlotRows, Pick, int], Any]  # (rows, selection, its length) -> values, or None if all are null


def batches(slot: SlotRows, columns: Sequence[str] = COLUMNS, rows: Any = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of at most 10,000 rows and 8 MiB, unless a single row is larger."""
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    makers = [(_COLUMNS[name], schema.field(name).type) for name in columns]
    for pick, count in _slices(slot.sizes if rows is None else slot.sizes[rows], rows):
        arrays = []
        for make, kind in makers:
            array = make(slot, pick, count)
            if array is None:
                array = pa.nulls(count, kind)
            arrays.append(array if array.type == kind else array.cast(kind))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def decode_groups(slots: Iterable[SlotHandle]) -> Iterator[list[SlotHandle]]:
    """Split slots into groups, each decoded into one batch; a slot larger than a batch is a group of its own.

    Cost: decoding a group takes at least a millisecond and 30 KB.
    """
    return groups(slots, BatchLimits(GROUP_SLOTS, BATCH_MAX_ROWS, BATCH_MAX_BYTES))


def _slices(sizes: Any, rows: Any) -> Iterator[tuple[Pick, int]]:
    ends = np.cumsum(sizes)
    at, done = 0, 0
    while at < len(ends):
        end = int(np.searchsorted(ends, done + BATCH_MAX_BYTES, side="right"))
        end = min(max(end, at + 1), at + BATCH_MAX_ROWS, len(ends))
        yield (slice(at, end) if rows is None else rows[at:end]), end - at
        at, done = end, int(ends[end - 1])


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
    **{name: _text(name) for name in TEXTS},
    "type": _text("message_type"),  # pamqp's name of the property
    "app_ts": lambda slot, pick, _count: slot.app_ts(pick),
    "headers": lambda slot, pick, _count: slot.headers(pick),
    "properties_raw": lambda slot, pick, _count: slot.properties_raw(pick),
    "body": lambda slot, pick, _count: slot.body(pick),
    "store": _meta("store", lambda meta: meta.store),
    "incarnation": _meta("incarnation", lambda meta: meta.incarnation or None),
}


@dataclass(frozen=True, repr=False)
class SlotRun(InputPartition):
    """Consecutive slots for one task. Its repr omits the URL, which may contain a password.

    Shapes: `reader` describes the reader, for error texts.
    """

    path: str | None
    url: str | None
    slots: Sequence[SlotHandle]
    conditions: Sequence[Condition]
    reader: str
    fail_on_gap: bool = True
    fail_on_bad_rows: bool = True

    def __repr__(self) -> str:
        return f"SlotRun({len(self.slots)} slots for {self.reader})"


def read_run(run: SlotRun, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run.

    Invariant: a row is left out only if a condition excludes it, or if the run tolerates bad rows or gaps.
    Raises: SlotMissing, SlotDamaged, SourceRefused.
    """
    headers = "headers" in schema.names
    with closing(open_catalog(run.path, run.url)) as catalog:
        for group in decode_groups(run.slots):
            opened = list(_opened(run, catalog, group))
            rows = joined_rows([view for _, view in opened], headers=headers)
            if rows is not None and _ids_match(rows, [slot for slot, _ in opened]):
                yield from _batches(rows, schema, chosen_rows(run.conditions, rows))
                continue
            for slot, view in opened:
                yield from _rows(run, slot, _checked(catalog, slot, view), schema)


def _opened(run: SlotRun, catalog: Catalog, slots: Sequence[SlotHandle]) -> Iterator[tuple[SlotHandle, SlotView]]:
    for slot in slots:
        try:
            yield slot, open_handle(catalog, slot)
        except SlotMissing as error:
            if run.fail_on_gap:
                hint = "slots are kept for named cursors" if slot.snapshot is None else SNAPSHOT_HINT
                raise SlotMissing(f"{error}; {run.reader} was to read it: {hint}") from None


def _checked(catalog: Catalog, slot: SlotHandle, view: SlotView) -> SlotRows:
    with restated(BadSlotFile, SlotDamaged, f"{slot} ({catalog.location(slot)}): "):
        rows = SlotRows(view)
    if not _ids_match(rows, [slot]):
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): its message ids are not those of its seal")
    return rows


def _ids_match(rows: SlotRows, slots: Sequence[SlotHandle]) -> bool:
    """Return whether the ids ascend within each slot and are within the bounds of its handle."""
    ids, file = rows.ids, rows.file
    firsts, ends = (np.array([getattr(slot, name) for slot in slots])[file] for name in ("first", "end"))
    rise = (np.diff(ids) > 0) | (np.diff(file) > 0)
    return bool(np.all(ids >= firsts) and np.all(ids < ends) and np.all(rise))


def _batches(rows: SlotRows, schema: pa.Schema, chosen: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches(rows, schema.names, chosen):
        yield batch if batch.schema == schema else batch.cast(schema)  # with the nullability of the user's schema
        rows.page_out()


def _rows(run: SlotRun, slot: SlotHandle, rows: SlotRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    bad = rows.bad(headers="headers" in schema.names)
    if bad and run.fail_on_bad_rows:
        raise SlotDamaged(
            f"{slot}: {len(bad)} of {slot.count} rows cannot be read (row {bad[0].position}: {bad[0].reason}); "
            "failOnBadRows=false leaves them out"
        )
    chosen = chosen_rows(run.conditions, rows, [row.position for row in bad])
    missing = slot.count if chosen is None else len(chosen)
    for batch in _batches(rows, schema, chosen):
        missing -= batch.num_rows
        yield batch
    if missing:
        raise SlotDamaged(f"{slot}: {missing} rows were not delivered")
