"""`slotmq pipeline doctor`: reports what the pipeline finds on this machine, and runs a small job through all of it."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.cli.parser import add_command
from broker.pipeline.job import Summary, add_spark, carry_out, spark_of
from broker.pipeline.job_failure import NO_JAVA, OK, USAGE, JobFailed
from broker.pipeline.progress import Progress
from broker.pipeline.spark.machine import Machine, gib, look

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from broker.pipeline.spark.java import Search

__all__ = ["DoctorOptions", "add_doctor", "run_doctor"]

ROWS: Final = 500_000
GROUPS: Final = 97


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """How to make the session of the small job; it runs only if there is a supported Java."""

    spark: Callable[[], SparkSession] | None = None
    rows: int = field(default=ROWS)


def add_doctor(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "doctor", "check whether the pipeline can run on this machine")
    command.add_argument("--job", action="store_true", help="also start Spark and run a job of three seconds")
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    options = DoctorOptions((lambda: spark_of(arguments, "slotmq-doctor")) if arguments.job else None)
    return carry_out(arguments, "doctor", lambda progress: run_doctor(options, progress), engine=arguments.job)


def run_doctor(options: DoctorOptions, progress: Progress) -> Summary:
    """Return the findings; the exit code says whether jobs can run here."""
    from broker.pipeline.spark.java import search

    machine = look()
    found = search(os.environ)
    values = _values(machine, found)
    lines = [*_machine_lines(machine), *_java_lines(found)]
    if machine.missing:
        lines.append(f'{", ".join(machine.missing)} missing: pip install ".[spark]" in a clone of SlotMQ')
        return Summary({**values, "job": None}, USAGE, tuple(lines))
    if found.java is None:
        from broker.pipeline.spark.java import NoJava

        lines.append(str(NoJava(found.refused)))
        return Summary({**values, "job": None}, NO_JAVA, tuple(lines))
    if options.spark is None:
        return Summary({**values, "job": None}, OK, (*lines, "Spark can start here; --job tries it"))
    try:
        job = _try_out(options.spark, options.rows, progress)
    except Exception as error:  # noqa: BLE001 - a failure must not hide the findings before it
        from broker.pipeline.spark.failure import told

        failure = error if isinstance(error, JobFailed) else told(error)
        return Summary({**values, "job": None, "failure": str(failure)}, failure.code, (*lines, f"job      {failure}"))
    lines.append(
        f"job      Spark started in {job['start_s']} s; {options.rows:,} rows went through Python in {job['job_s']} s"
    )
    return Summary({**values, "job": job}, OK, (*lines, "the pipeline can run here"))


def _try_out(start: Callable[[], SparkSession], rows: int, progress: Progress) -> dict[str, float]:
    progress.step("starting Spark")
    began = time.monotonic()
    spark = start()
    started = time.monotonic()
    progress.step("running a job")
    count_rows(spark, rows)
    return {"start_s": round(started - began, 1), "rows": rows, "job_s": round(time.monotonic() - started, 1)}


def count_rows(spark: SparkSession, rows: int) -> None:
    """Send rows through Python workers and a shuffle. Raises: JobFailed if some of them are lost."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    groups = spark.range(rows).mapInArrow(same, "id bigint").selectExpr(f"id % {GROUPS} AS place").groupBy("place")
    counted = sum(row["count"] for row in groups.count().collect())
    if counted != rows:
        raise JobFailed(f"a job over {rows} rows counted {counted}")


def _values(machine: Machine, found: Search) -> dict[str, Any]:
    java = found.java
    return {
        "python": machine.python,
        "cores": machine.cores,
        "packages": machine.packages,
        "memory_bytes": machine.memory_bytes,
        "temporary": machine.temporary,
        "temporary_bytes": machine.temporary_bytes,
        "warnings": machine.warnings,
        "java": None
        if java is None
        else {"version": java.version, "source": java.source, "home": str(java.where), "shim": java.shimmed},
        "refused": [{"source": each.source, "where": each.where, "reason": each.reason} for each in found.refused],
    }


def _machine_lines(machine: Machine) -> Iterator[str]:
    yield f"python   {machine.python}, {machine.cores} cores"
    yield "packages " + ", ".join(f"{name} {found or 'missing'}" for name, found in machine.packages.items())
    memory = "unknown" if machine.memory_bytes is None else f"{gib(machine.memory_bytes)} to be had"
    yield f"memory   {memory}"
    yield f"space    {gib(machine.temporary_bytes)} in {machine.temporary}"
    if machine.shell is None:
        yield "shell    no bash, which Spark's launcher is written for"
    yield from (f"warning  {each}" for each in machine.warnings)


def _java_lines(found: Search) -> Iterator[str]:
    for each in found.refused:
        yield f"java     {each.source}: {f'{each.where}: ' if each.where else ''}{each.reason}"
    if found.java is not None:
        shim = ", with a launcher as it has no vector module" if found.java.shimmed else ""
        yield f"java     {found.java.source}: {found.java.where}: {found.java.version}{shim}"
