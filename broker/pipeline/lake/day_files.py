"""The files that one writer makes of rows as they come: one for each day on which they were taken."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import LakeFile
from broker.pipeline.lake.parquet_file import ParquetFile, bounds

__all__ = ["DayFiles"]

DAY_US: Final = 86_400_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DayFiles:
    """Files below a table's data folder; no log names them yet. Shapes: batches have a column `ts`."""

    def __init__(self, disk: Disk, data: Path, writer: str, schema: pa.Schema, schema_version: int) -> None:
        self._disk = disk
        self._data = data
        self._writer = writer
        self._schema = schema
        self._version = schema_version
        self._files: dict[int, ParquetFile] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[ParquetFile, pa.RecordBatch]]:
        """Add rows, and yield each file that got some with those rows, in their order."""
        for day, part, first_us, last_us in _by_day(batch):
            file = self._files.get(day)
            if file is None:
                path = f"date={_date(day)}/{self._writer}-{uuid.uuid4().hex}.parquet"
                file = self._files[day] = ParquetFile(self._disk, self._data, path, self._schema, self._version)
            file.add(part, first_us, last_us)
            yield file, part

    def finish(self) -> tuple[LakeFile, ...]:
        """Write what is left, and return the files; all of them are on disk then."""
        return tuple(file.finish(_date(day)) for day, file in sorted(self._files.items()))

    def close(self) -> None:
        """End files that nobody wants."""
        for file in self._files.values():
            file.close()

    def remove(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.remove()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch, int, int]]:
    """Yield day number, rows, and their earliest and latest time."""
    first_us, last_us = bounds(batch.column("ts"))
    if first_us // DAY_US == last_us // DAY_US:
        yield first_us // DAY_US, batch, first_us, last_us
        return
    days: Any = batch.column("ts").cast(pa.int64()).to_numpy() // DAY_US
    for day in np.unique(days).tolist():
        part = batch.filter(pa.array(days == day))
        yield day, part, *bounds(part.column("ts"))


def _date(day: int) -> str:
    return (EPOCH + timedelta(days=day)).date().isoformat()
