"""`slotmq pipeline compact`: rewrites the many small files of days that are over as few large ones, in order."""

from __future__ import annotations

import argparse
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.parser import BadUsage, add_command
from broker.pipeline.faults import LakeRefused
from broker.pipeline.job import OK, USAGE, JobFailed, Progress, Summary, add_spark, carry_out, path_argument, spark_of
from broker.pipeline.lake.compaction import COMPACT, DayPlan, described, plan
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import Entry, LakeFile
from broker.pipeline.lake.folder_lock import FolderLock
from broker.pipeline.lake.lake import Lake, spark_setting
from broker.pipeline.lake.manifest import DAY_MS, now_ms
from broker.pipeline.lake.parquet_file import CODEC, ROW_GROUP_ROWS
from broker.pipeline.source.schema import SPARK_DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactOptions", "add_compact", "run_compact"]

TARGET_MB: Final = 192
KEEP_DAYS: Final = 7.0
KEEP_DAYS_MAX: Final = 36_500
LOCK: Final = "_compact.lock"
WORK: Final = "_compacting"
MEGABYTE: Final = 1_000_000
TIMES: Final = "spark.sql.parquet.outputTimestampType"
ORDER: Final = ("vhost", "queue", "offset")


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What to compact. Shapes: `day` is one date, else all that are over; what was replaced is kept `keep_days`."""

    spark: Callable[[], SparkSession]
    lake: Path
    day: str | None = None
    target_bytes: int = TARGET_MB * MEGABYTE
    keep_days: float = KEEP_DAYS


def add_compact(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "compact", "rewrite a lake's many small files as few large ones")
    command.add_argument("--lake", metavar="DIR", type=path_argument, required=True, help="the lake")
    command.add_argument("--day", metavar="DATE", help="only this day, such as 2026-11-20; default all that are over")
    command.add_argument(
        "--target-mb", metavar="N", type=float, default=TARGET_MB, help=f"size of a new file; default {TARGET_MB}"
    )
    command.add_argument(
        "--keep-days",
        metavar="N",
        type=float,
        default=KEEP_DAYS,
        help=f"how long replaced files stay for those who read them; default {KEEP_DAYS:g}",
    )
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.day is not None:
        try:
            arguments.day = date.fromisoformat(arguments.day).isoformat()
        except ValueError:
            raise BadUsage(f"--day {arguments.day!r} is no date such as 2026-11-20") from None
    if not 1 / MEGABYTE <= arguments.target_mb <= 100_000:
        raise BadUsage(f"--target-mb {arguments.target_mb:g} is not between 0 and 100,000")
    if not 0 <= arguments.keep_days <= KEEP_DAYS_MAX:
        raise BadUsage(f"--keep-days is between 0 and {KEEP_DAYS_MAX:,}")
    options = CompactOptions(
        lambda: spark_of(arguments, "slotmq-compact"),
        arguments.lake,
        arguments.day,
        round(arguments.target_mb * MEGABYTE),
        arguments.keep_days,
    )
    return carry_out(arguments, "compact", lambda progress: run_compact(options, progress))


def run_compact(options: CompactOptions, progress: Progress) -> Summary:
    """Compact, and return what came of it; an archive may write to the lake meanwhile. Raises: JobFailed."""
    try:
        lake = Lake(options.lake)
    except LakeRefused as refused:
        raise JobFailed(str(refused), USAGE) from None
    try:
        with FolderLock(lake.path / LOCK) as alone:
            if not alone:
                raise JobFailed(f"{lake.path} is being compacted already")
            return _compact(options, lake, progress)
    except LakeRefused as refused:
        raise JobFailed(str(refused)) from None


def _compact(options: CompactOptions, lake: Lake, progress: Progress) -> Summary:
    table = lake.message_table
    shutil.rmtree(table.folder / WORK, ignore_errors=True)  # of one that was killed
    swept = table.sweep(own=f"{COMPACT}-", keep_removed_ms=round(options.keep_days * DAY_MS))
    today = datetime.now(UTC).date().isoformat()
    plans = plan(table.files(), today, options.target_bytes, options.day)
    before = [file for one in plans for file in one.files]
    made: list[LakeFile] = []
    if plans:
        progress.step("starting Spark")
        spark = options.spark()
        for one in plans:
            progress.step(one.date)
            made += _rewrite(spark, lake, one)
            progress.add(rows=one.rows)
    values = {
        "lake": str(lake.path),
        "days": len(plans),
        "rows": sum(file.rows for file in made),
        "files_before": len(before),
        "files_after": len(made),
        "bytes_before": sum(file.bytes for file in before),
        "bytes_after": sum(file.bytes for file in made),
        "removed": swept.removed,
        "orphans": swept.orphans,
        "elapsed_s": round(progress.elapsed_s, 3),
    }
    return Summary(values, OK)


def _rewrite(spark: SparkSession, lake: Lake, one: DayPlan) -> list[LakeFile]:
    """Write one day anew and make its entry, which adds the new files and removes the old ones in one step."""
    table, disk = lake.message_table, Disk()
    work = table.folder / WORK / uuid.uuid4().hex
    with spark_setting(spark, TIMES, "TIMESTAMP_MICROS"):
        frame = lake.frame(spark, table, one.files, SPARK_DDL)
        shared = frame.repartition(1) if one.parts == 1 else frame.repartitionByRange(one.parts, *ORDER)
        writer = shared.sortWithinPartitions(*ORDER).write.option("compression", CODEC)
        writer = writer.option("parquet.block.row.count.limit", ROW_GROUP_ROWS)
        writer.option("parquet.enable.dictionary#body", "false").parquet(str(work))
    made = []
    try:
        for part in sorted(work.glob("part-*.parquet")):
            disk.sync_file(part)
            path = f"date={one.date}/{COMPACT}-{uuid.uuid4().hex}.parquet"
            file = described(part, path, one.date)
            disk.rename(part, table.data / path)
            made.append(file)
        if sum(file.rows for file in made) != one.rows:
            raise JobFailed(f"{one.date} has {one.rows:,} rows, and {sum(file.rows for file in made):,} when rewritten")
        disk.sync_folder(table.data / f"date={one.date}")
        removed = tuple(file.path for file in one.files)
        table.manifest.append(
            lambda batch: Entry(COMPACT, batch, now_ms(), tuple(made), removed, rows=one.rows), COMPACT
        )
    except BaseException:
        table.discard(made)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table.manifest.tidy()
    return made
