"""The files that one writer creates from a stream of rows: one for each day on which messages were taken."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.parquet_file import NewFile, ParquetFile

__all__ = ["DayFiles"]

DAY_US: Final = 86_400_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DayFiles:
    """Files in a table's folder that no log names yet; an exception inside `with` removes them.

    Shapes: batches have a column `ts`.
    """

    def __init__(self, disk: Disk, table: Path, writer: str, schema: pa.Schema) -> None:
        self._disk = disk
        self._table = table
        self._writer = writer
        self._schema = schema
        self._files: dict[int, ParquetFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for file in self._files.values():
                file.close()
                file.remove()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        for day, part in _by_day(batch):
            file = self._files.get(day)
            if file is None:
                path = f"date={_date(day)}/{self._writer}-{uuid.uuid4().hex}.parquet"
                file = self._files[day] = ParquetFile(self._disk, self._table, path, self._schema)
            file.add(part)

    def finish(self) -> tuple[NewFile, ...]:
        """Write the remaining rows, and return the files; all of them are on disk then."""
        return tuple(file.finish(_date(day)) for day, file in sorted(self._files.items()))


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    times = batch.column("ts").cast(pa.int64())
    found = pc.min_max(times)
    first, last = (found[name].as_py() // DAY_US for name in ("min", "max"))
    if first == last:
        yield first, batch
        return
    days: Any = times.to_numpy() // DAY_US
    for day in np.unique(days).tolist():
        yield day, batch.filter(pa.array(days == day))


def _date(day: int) -> str:
    return (EPOCH + timedelta(days=day)).date().isoformat()
