"""One Parquet file of a lake while it is written: row groups, encodings, and what the log will say about it.

Rows of a queue stand together and in order, so that minimum and maximum of a row group prune; bodies have neither,
for nobody compares them. Keys and names repeat and get a dictionary, ids and times are stored as differences.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import IdRange, LakeFile

__all__ = ["ROW_GROUP_BYTES", "ROW_GROUP_ROWS", "ParquetFile"]

ROW_GROUP_ROWS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 64 << 20  # large bodies end a row group earlier: it is held in memory until it is written
CODEC: Final = "zstd"
CODEC_LEVEL: Final = 1

DICTIONARIES: Final = frozenset(
    "vhost queue exchange routing_key content_type content_encoding reply_to expiration type user_id app_id headers "
    "properties_raw priority delivery_mode reason store incarnation query".split()
)
DIFFERENCES: Final = frozenset("slot seal offset ts app_ts".split())
COMPARED: Final = frozenset("vhost queue slot seal offset ts exchange routing_key".split())


class ParquetFile:
    """A file that grows by record batches of one schema. Invariant: what `finish` returns is on disk."""

    def __init__(self, disk: Disk, data: Path, path: str, schema: pa.Schema, schema_version: int) -> None:
        self._disk = disk
        self._whole = data / path
        self._path = path
        self._schema = schema
        self._version = schema_version
        disk.make_folder(self._whole.parent)
        self._file = disk.create(self._whole)
        names = schema.names
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, "w"),
            schema,
            compression=CODEC,
            compression_level=CODEC_LEVEL,
            use_dictionary=[name for name in names if name in DICTIONARIES],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in DIFFERENCES},
            write_statistics=[name for name in names if name in COMPARED],
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._ids: dict[tuple[str, str], list[int]] = {}

    def add(self, batch: pa.RecordBatch, first_us: int, last_us: int) -> None:
        """Add a batch whose times are known to be within those."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        self._first_us = first_us if self._first_us is None else min(self._first_us, first_us)
        self._last_us = last_us if self._last_us is None else max(self._last_us, last_us)
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write()

    def add_ids(self, vhost: str, queue: str, first: int, end: int, rows: int) -> None:
        """Note which message ids of a queue the batches hold."""
        held = self._ids.setdefault((vhost, queue), [first, end, 0])
        held[0] = min(held[0], first)
        held[1] = max(held[1], end)
        held[2] += rows

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def finish(self, date: str) -> LakeFile:
        """Write what is left, syncs the file, and return what the log says about it."""
        self._write()
        self._writer.close()
        self._disk.sync(self._file)
        self._file.close()
        size, crc = checksum(self._whole)
        assert self._first_us is not None and self._last_us is not None
        return LakeFile(
            path=self._path,
            date=date,
            rows=self._rows,
            bytes=size,
            crc=crc,
            schema_version=self._version,
            first_ts_ms=self._first_us // 1000,
            last_ts_ms=self._last_us // 1000,
            ids=tuple(IdRange(*key, *held) for key, held in sorted(self._ids.items())),
        )

    def close(self) -> None:
        """End a file that nobody wants; a second time does nothing."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()

    def remove(self) -> None:
        """Remove the file."""
        self._disk.remove(self._whole)


def checksum(path: Path) -> tuple[int, int]:
    """Return the length and the crc32c of a file that is not empty."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as block:
        return len(block), crc32c(block)


def bounds(column: Any) -> tuple[int, int]:
    """Return the least and the greatest of a column of numbers or times, as integers. Invariant: it has rows."""
    found = pc.min_max(column.cast(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()
