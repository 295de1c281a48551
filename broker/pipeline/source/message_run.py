"""The work of one task: reads a run of slots into rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from broker.pipeline.faults import SlotDamaged, SlotMissing
from broker.pipeline.source.catalog import Catalog, open_catalog, open_handle
from broker.pipeline.source.decoder import batches, together
from broker.pipeline.source.planner import Condition, chosen_rows
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows, joined_rows
from broker.slot_files.slot_file import BadSlotFile
from broker.slot_files.slot_view import SlotView

__all__ = ["SlotRun", "read_run"]


@dataclass(frozen=True, repr=False)
class SlotRun(InputPartition):
    """Consecutive slots for one task. It is pickled; its text omits the URL, which contains a password.

    Shapes: `reader` names the reader, for texts.
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

    Invariant: the rows of each slot are exactly the message ids of its handle, minus those that the conditions exclude.
    Raises: SlotMissing, SlotDamaged, SourceRefused.
    """
    catalog = open_catalog(run.path, run.url)
    headers = "headers" in schema.names
    try:
        for group in together(run.slots):
            opened = list(_opened(run, catalog, group))
            rows = joined_rows([view for _, view in opened], headers=headers)
            if rows is not None and _ids_right(rows, [slot for slot, _ in opened]):
                yield from _batches(rows, schema, chosen_rows(run.conditions, rows))
                continue
            for slot, view in opened:
                yield from _rows(run, slot, _checked(catalog, slot, view), schema)
    finally:
        catalog.close()


def _opened(run: SlotRun, catalog: Catalog, slots: Sequence[SlotHandle]) -> Iterator[tuple[SlotHandle, SlotView]]:
    for slot in slots:
        try:
            yield slot, open_handle(catalog, slot)
        except SlotMissing as error:
            if run.fail_on_gap:
                raise SlotMissing(f"{error}; {run.reader} was to read it: {_hint(slot)}") from None


def _hint(slot: SlotHandle) -> str:
    if slot.snapshot is not None:
        return (
            "a snapshot is kept for a while only (settings taps.snapshot_ms, taps.snapshots_user_max), "
            "so load the queue again"
        )
    return "slots are kept for named cursors"


def _checked(catalog: Catalog, slot: SlotHandle, view: SlotView) -> SlotRows:
    try:
        rows = SlotRows(view)
    except BadSlotFile as error:
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): {error}") from None
    if not _ids_right(rows, [slot]):
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): its message ids are not those it says")
    return rows


def _ids_right(rows: SlotRows, slots: Sequence[SlotHandle]) -> bool:
    """Return whether the ids rise within each slot, and are those of its handle."""
    ids, file = rows.ids, rows.file
    firsts, ends = (np.array([getattr(slot, name) for slot in slots])[file] for name in ("first", "end"))
    rise = (np.diff(ids) > 0) | (np.diff(file) > 0)
    return bool(np.all(ids >= firsts) and np.all(ids < ends) and np.all(rise))


def _batches(rows: SlotRows, schema: pa.Schema, chosen: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches(rows, schema.names, chosen):
        yield batch if batch.schema == schema else batch.cast(schema)  # with the nullability of the user's schema
        rows.let_go()


def _rows(run: SlotRun, slot: SlotHandle, rows: SlotRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    bad = rows.bad(headers="headers" in schema.names)
    if bad and run.fail_on_bad_rows:
        raise SlotDamaged(
            f"{slot}: {len(bad)} of {slot.count} rows cannot be read (row {bad[0].position}: {bad[0].reason}); "
            "failOnBadRows=false leaves them out"
        )
    chosen = chosen_rows(run.conditions, rows, [row.position for row in bad])
    due = slot.count if chosen is None else len(chosen)
    for batch in _batches(rows, schema, chosen):
        due -= batch.num_rows
        yield batch
    if due:
        raise SlotDamaged(f"{slot}: {due} rows were not delivered")
