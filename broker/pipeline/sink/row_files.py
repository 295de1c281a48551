"""Rows of messages as files of a lake, one a day: for who has rows in place of slots."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pyarrow as pa

from broker.pipeline.lake.day_files import DayFiles
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import LakeFile
from broker.pipeline.source.schema import ARROW_SCHEMA, SCHEMA_VERSION

__all__ = ["RowFiles"]


class RowFiles:
    """Writes batches into a lake's folder; inside `with`, what fails leaves no file. No log names the files yet.

    Shapes: batches have the schema of messages, each the rows of one queue in the order of their offsets.
    """

    def __init__(self, lake: Path, writer: str, disk: Disk | None = None) -> None:
        self._files = DayFiles(disk or Disk(), lake / "messages" / "data", writer, ARROW_SCHEMA, SCHEMA_VERSION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._files.close()
            self._files.remove()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        for file, part in self._files.add(batch):
            ids, queue = part.column("offset"), part.column("queue")[0].as_py()
            for found in part.column("vhost").value_counts().to_pylist():
                file.add_ids(found["values"], queue, ids[0].as_py(), ids[-1].as_py() + 1, found["counts"])

    def finish(self) -> tuple[LakeFile, ...]:
        """Write what is left and return the files; all of them are on disk then."""
        return self._files.finish()
