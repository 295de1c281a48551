"""Rows that were not published, as Parquet files in a folder: a log names the files that count.

    data/<uuid>.parquet            written by one attempt of a task
    _log/<run>-<batch>.json        the files of the successful attempts, written once, by the commit

A failed attempt may have left a file that no log names: it does not count.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from broker.pipeline.lake.place import Disk
from broker.pipeline.sink.amqp_publisher import RefusedMessage

DATA, LOG = "data", "_log"
WAITING_MAX: Final = 5_000  # rows held before they are written

BAD_SCHEMA: Final = pa.schema(
    [
        ("seal", pa.int64()),
        ("slot", pa.int64()),
        ("offset", pa.int64()),
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("properties_raw", pa.binary()),
        ("body", pa.binary()),
        ("code", pa.int32()),  # AMQP's; 0 is a full queue, or a row that cannot be a message
        ("reason", pa.string()),
    ]
)


class BadRecordFile:
    """Stores the bad rows of one attempt of a task; the first row creates the file.

    Invariant: at the end of `with` the file is on disk, and after an exception it is gone.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATA / f"{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[RefusedMessage] = []
        self.rows = 0

    @property
    def name(self) -> str:
        """The file's name, empty when there is none."""
        return "" if self._writer is None else self._path.name

    def add(self, refused: RefusedMessage) -> None:
        """Add one row."""
        self.rows += 1
        self._waiting.append(refused)
        if len(self._waiting) >= WAITING_MAX:
            self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write()
        if self._writer is None:
            return
        with nullcontext() if kind is None else suppress(OSError):
            self._writer.close()
            if kind is not None:
                self._path.unlink(missing_ok=True)
                return
            disk = Disk()
            disk.sync_file(self._path)
            disk.sync_folder(self._path.parent)

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if self._writer is None:
            Disk().make_folder(self._path.parent)
            self._writer = pq.ParquetWriter(self._path, BAD_SCHEMA, compression="zstd")
        messages = [refused.message for refused in waiting]
        places: list[Any] = [message[5] for message in messages]
        columns = [
            *([place[at] for place in places] for at in range(3)),
            *([message[at] for message in messages] for at in range(4)),
            [refused.code for refused in waiting],
            [refused.reason for refused in waiting],
        ]
        self._writer.write_table(pa.table(columns, schema=BAD_SCHEMA))


class BadRecordLog:
    """The log of the files in a folder that count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, run: str, batch: int, names: Sequence[str]) -> None:
        """Log these files for a batch; the first commit of a batch is final."""
        disk = Disk()
        if not names:
            return
        folder = self._folder / LOG
        disk.make_folder(folder)
        whole = folder / f".{uuid.uuid4().hex}"
        with disk.create(whole) as file:
            file.write(json.dumps({"format": 1, "files": sorted(names)}).encode())
            disk.sync(file)
        if not disk.link(whole, folder / f"{run}-{batch:020}.json"):
            self.remove(names)
        whole.unlink()
        disk.sync_folder(folder)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files that do not count."""
        for name in names:
            (self._folder / DATA / name).unlink(missing_ok=True)

    def files(self) -> list[str]:
        """Return the paths of the files that count, for `spark.read.parquet(*files)`."""
        folder = self._folder / LOG
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json")) if folder.is_dir() else []  # noqa: PTH208 - names
        found = [json.loads((folder / name).read_bytes())["files"] for name in names]
        return [str(self._folder / DATA / name) for files in found for name in files]
