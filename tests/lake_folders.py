"""Lakes with messages that a test makes up, written as an archive writes them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.pipeline.lake import Lake
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import Entry
from broker.pipeline.lake.parquet_file import ParquetFile
from broker.pipeline.source.schema import ARROW_SCHEMA, SCHEMA_VERSION

__all__ = ["make_lake"]

QUERY = "test"


def make_lake(path: Path, rows: Iterable[Mapping[str, Any]]) -> Lake:
    """Return a lake of rows, one file for each day. Shapes: a row has any of a message's columns, `ts` in any case."""
    days: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        days.setdefault(f"{row['ts'].astimezone(UTC):%Y-%m-%d}", []).append(row)
    lake = Lake(path, create=True)
    files = []
    for date, of_day in sorted(days.items()):
        file = ParquetFile(Disk(), lake.message_table.data, f"date={date}/{date}.parquet", ARROW_SCHEMA, SCHEMA_VERSION)
        moments = [_microseconds(row["ts"]) for row in of_day]
        columns = [
            pa.array([row.get(name) for row in of_day], ARROW_SCHEMA.field(name).type) for name in ARROW_SCHEMA.names
        ]
        file.add(pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA), min(moments), max(moments))
        files.append(file.finish(date))
    entry = Entry(QUERY, 0, at_ms=0, add=tuple(files), rows=sum(file.rows for file in files))
    lake.message_table.commit(entry)
    return lake


def _microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
