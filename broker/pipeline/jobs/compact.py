"""`slotmq pipeline compact`: merge the many small files of a lake into few large ones, without Spark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from broker.cli.parser import BadUsage, add_command, add_value
from broker.pipeline.faults import OK
from broker.pipeline.job import Progress, Summary, add_lake, add_output, carry_out, open_lake

TARGET_MB: Final = 192
KEEP_DAYS: Final = 7.0
KEEP_DAYS_MAX: Final = 36_500
MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The files to compact. Shapes: `day` is a date, or None for all; replaced files are kept for `keep_days`."""

    lake: Path | str
    day: str | None = None
    target_bytes: int = TARGET_MB * MEGABYTE
    keep_days: float = KEEP_DAYS


def add_compact(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "compact", "merge a lake's many small files into few large ones")
    add_lake(command, "the lake")
    add_value(command, "--day", "DATE", "only this day, such as 2026-11-20; default all days")
    add_value(command, "--target-mb", "N", f"size of a new file; default {TARGET_MB}", type=float, default=TARGET_MB)
    add_keep(command)
    add_output(command)
    command.set_defaults(run=_run)


def add_keep(command: argparse.ArgumentParser) -> None:
    """Add the argument that says how long replaced files are kept."""
    text = f"days that replaced files are kept for readers and time travel; default {KEEP_DAYS:g}"
    add_value(command, "--keep-days", "N", text, type=float, default=KEEP_DAYS)


def keep_hours(keep_days: float) -> int:
    """Return the value of --keep-days in hours. Raises: BadUsage."""
    if not 0 <= keep_days <= KEEP_DAYS_MAX:
        raise BadUsage(f"--keep-days is between 0 and {KEEP_DAYS_MAX:,}")
    return round(keep_days * 24)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.day is not None:
        try:
            arguments.day = date.fromisoformat(arguments.day).isoformat()
        except ValueError:
            raise BadUsage(f"--day {arguments.day!r} is not a date such as 2026-11-20") from None
    if not 1 / MEGABYTE <= arguments.target_mb <= 100_000:
        raise BadUsage(f"--target-mb {arguments.target_mb:g} is not between 0 and 100,000")
    keep_hours(arguments.keep_days)
    options = CompactOptions(arguments.lake, arguments.day, round(arguments.target_mb * MEGABYTE), arguments.keep_days)
    return carry_out(arguments, "compact", lambda progress: run_compact(options, progress))


def run_compact(options: CompactOptions, progress: Progress) -> Summary:
    """Compact a lake, and return the summary; an archive may run at the same time. Raises: JobFailed."""
    lake = open_lake(options.lake)
    progress.step("compacting")
    before = lake.files()
    done = lake.compact(options.target_bytes, options.day)
    progress.step("removing replaced files")
    removed = lake.vacuum(keep_hours(options.keep_days))
    after = lake.files()
    values = {
        "lake": str(lake.place),
        "days": done["partitionsOptimized"],
        "replaced": done["numFilesRemoved"],
        "made": done["numFilesAdded"],
        "files_before": len(before),
        "files_after": len(after),
        "bytes_before": sum(file.bytes for file in before),
        "bytes_after": sum(file.bytes for file in after),
        "removed": removed,
        "elapsed_s": round(progress.elapsed_s, 3),
    }
    return Summary(values, OK)
