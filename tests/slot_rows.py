"""Slots as rows of the format `slotmq-slots`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from broker.pipeline.source.schema import INSTANT, SLOTS_ARROW_SCHEMA
from broker.pipeline.source.slot_handle import SlotHandle


def slot_rows(handles: Sequence[SlotHandle]) -> pa.RecordBatch:
    """Return the `slotmq-slots` rows of slots."""
    names = {"slot": "first", "first_ts": "first_ts_ms", "last_ts": "last_ts_ms"}
    columns = []
    for column in SLOTS_ARROW_SCHEMA:
        values = [getattr(handle, names.get(column.name, column.name), None) for handle in handles]
        if column.type == INSTANT:
            columns.append(pa.array(values, pa.timestamp("ms", tz="UTC")).cast(INSTANT))
        else:
            columns.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=SLOTS_ARROW_SCHEMA)
