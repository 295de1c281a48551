"""Which files of a lake are worth to be written anew as fewer, and what the log says about those. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from broker.pipeline.lake.entry import IdRange, LakeFile
from broker.pipeline.lake.parquet_file import bounds, checksum
from broker.pipeline.source.schema import SCHEMA_VERSION

__all__ = ["COMPACT", "DayPlan", "described", "plan"]

COMPACT: Final = "compact"  # the name of the compaction in the log, and what its files' names begin with
NARROW: Final = ["vhost", "queue", "offset", "ts"]


@dataclass(frozen=True, slots=True)
class DayPlan:
    """The files of one day that become `parts` new ones."""

    date: str
    files: tuple[LakeFile, ...]
    parts: int

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return sum(file.rows for file in self.files)


def plan(files: Sequence[LakeFile], before: str, target_bytes: int, day: str | None = None) -> list[DayPlan]:
    """Return the days that are over before a date, or the one named, which have files to put together.

    Files that a compaction made are left alone, unless they are under half as large as they should be.
    """
    plans = []
    for date, found in groupby(sorted(files, key=lambda file: (file.date, file.path)), key=lambda file: file.date):
        if date >= before or day not in (None, date):
            continue
        small = [file for file in found if not file.compacted or file.bytes < target_bytes // 2]
        if len(small) > 1 and not all(file.compacted for file in small):
            size = sum(file.bytes for file in small)
            plans.append(DayPlan(date, tuple(small), max(1, round(size / target_bytes))))
    return plans


def described(whole: Path, path: str, date: str) -> LakeFile:
    """Return what the log says of a new file.

    Cost: four columns are read, not the bodies.
    """
    table = pq.read_table(whole, columns=NARROW)
    first_us, last_us = bounds(table.column("ts"))
    grouped = table.group_by(["vhost", "queue"]).aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    size, crc = checksum(whole)
    return LakeFile(
        path=path,
        date=date,
        rows=table.num_rows,
        bytes=size,
        crc=crc,
        schema_version=SCHEMA_VERSION,
        first_ts_ms=first_us // 1000,
        last_ts_ms=last_us // 1000,
        ids=tuple(sorted((_ids(row) for row in grouped.to_pylist()), key=lambda ids: (ids.vhost, ids.queue))),
        compacted=True,
    )


def _ids(row: dict[str, Any]) -> IdRange:
    return IdRange(row["vhost"], row["queue"], row["offset_min"], row["offset_max"] + 1, row["offset_count"])
