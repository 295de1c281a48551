"""Lakes with invented messages, written as an archive writes them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import Copied, DayFiles
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.schema import ARROW_SCHEMA

__all__ = ["make_lake"]

QUERY = "test"


def make_lake(path: Path, rows: Iterable[Mapping[str, Any]]) -> Lake:
    """Return a lake with one file per day. Shapes: a row has any of a message's columns, and always `ts`."""
    lake, of_all = Lake(path, create=True), list(rows)
    columns = [pa.array([row.get(column.name) for row in of_all], column.type) for column in ARROW_SCHEMA]
    with DayFiles(lake.disk, lake.message_table.folder, QUERY, ARROW_SCHEMA) as files:
        if of_all:
            files.add(pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA))
        made = files.finish()
    lake.commit(LakeBatch(QUERY, 1, "", Copied(made, rows=len(of_all))))
    return lake
