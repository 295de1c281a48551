"""Writes the Parquet files of a lake, one for each day: row groups, encodings, and the statistics for the log.

Rows of a queue are adjacent and in order, so that the minimum and maximum of a row group prune. Bodies have no
statistics, because queries do not compare them. Keys and names repeat and get a dictionary, ids and times are stored as
differences.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.pipeline.lake.place import Disk

ROW_GROUP_ROWS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 32 << 20  # large bodies end a row group earlier, because it is held in memory until written
CODEC: Final = "zstd"
CODEC_LEVEL: Final = 1
DAY_US: Final = 86_400_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

DICTIONARIES: Final = frozenset(
    "vhost queue exchange routing_key content_type content_encoding reply_to expiration type user_id app_id headers "
    "properties_raw priority delivery_mode reason store incarnation query".split()
)
DIFFERENCES: Final = frozenset("slot seal offset ts app_ts".split())
COMPARED: Final = ("vhost", "queue", "slot", "seal", "offset", "ts", "exchange", "routing_key")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file on disk that no log names yet.

    Shapes: `path` is relative to the table's folder; `date` is that of its rows, 2026-11-20; `stats` is Delta's JSON.
    """

    path: str
    date: str
    bytes: int
    stats: str


class ParquetFile:
    """A file that grows by record batches of one schema. Invariant: a file that `finish` returns is on disk."""

    def __init__(self, disk: Disk, table: Path, path: str, schema: pa.Schema) -> None:
        self._disk = disk
        self._whole = table / path
        self._path = path
        self._schema = schema
        disk.make_folder(self._whole.parent)
        self._file = disk.create(self._whole)
        self._written: list[Any] = []
        names = schema.names
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression=CODEC,
            compression_level=CODEC_LEVEL,
            use_dictionary=[name for name in names if name in DICTIONARIES],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in DIFFERENCES},
            write_statistics=[name for name in names if name in COMPARED],
            store_schema=False,
            metadata_collector=self._written,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def finish(self, date: str) -> NewFile:
        """Write the remaining rows, sync the file, and return its description for the log."""
        self._write()
        self._writer.close()
        self._disk.sync(self._file)
        size = self._file.tell()
        self._file.close()
        self._disk.sync_folder(self._whole.parent)
        return NewFile(self._path, date, size, stats_of(self._written[0]))

    def close(self) -> None:
        """Close an unwanted file, also on a full disk; a second call does nothing."""
        if not self._file.closed:
            for each in (self._writer, self._file):
                with suppress(OSError, RuntimeError, pa.ArrowException):
                    each.close()

    def remove(self) -> None:
        """Remove the file."""
        self._disk.remove(self._whole)


def stats_of(metadata: Any) -> str:
    """Return the statistics of compared columns for Delta's log: minimum, maximum and null count."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    for at, name in enumerate(metadata.schema.names):
        found = [group.column(at).statistics for group in groups] if name in COMPARED else []
        if not found or not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        if bounds:
            least[name] = _plain(min(each.min for each in bounds))
            greatest[name] = _plain(max(each.max for each in bounds))
    stats = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(stats, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value


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
