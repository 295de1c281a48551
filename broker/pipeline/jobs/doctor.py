"""`slotmq pipeline doctor`: report whether the pipeline can run on this machine, and optionally run a small job."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.parser import add_command, add_switch
from broker.figures.numerals import size_text
from broker.pipeline.faults import NO_JAVA, OK, USAGE, JobFailed
from broker.pipeline.job import Progress, Summary, add_spark, carry_out, spark_of
from broker.pipeline.spark import java
from broker.pipeline.spark.java import Search
from broker.pipeline.spark.log import failure_of
from broker.pipeline.spark.server import package_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROWS: Final = 500_000
GROUPS: Final = 97
PACKAGES: Final = ("pyspark", "pyarrow", "deltalake", "pandas", "numpy")
MEMORY_NEEDED_BYTES: Final = 2 << 30  # for the JVM, the driver and two workers
SPACE_NEEDED_BYTES: Final = 1 << 30
PANDAS_BELOW: Final = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about the machine. Shapes: a missing package's version, a missing shell and unknown memory are None."""

    python: str
    cores: int
    packages: dict[str, str | None]
    memory_bytes: int | None
    temporary: str
    temporary_bytes: int
    shell: str | None

    @property
    def missing(self) -> list[str]:
        """The required packages that are not installed."""
        return [name for name, found in self.packages.items() if found is None]

    @property
    def warnings(self) -> list[str]:
        """Problems that may occur even if Spark starts."""
        found = []
        if self.memory_bytes is not None and self.memory_bytes < MEMORY_NEEDED_BYTES:
            found.append(
                f"{size_text(self.memory_bytes)} of memory is too little: Spark needs {size_text(MEMORY_NEEDED_BYTES)}"
            )
        if self.temporary_bytes < SPACE_NEEDED_BYTES:
            found.append(
                f"{size_text(self.temporary_bytes)} is too little for what Spark writes to {self.temporary}; "
                "SPARK_LOCAL_DIRS names another place"
            )
        pandas = self.packages.get("pandas") or "0"
        if int(pandas.partition(".")[0]) >= PANDAS_BELOW:
            found.append(f'pandas {pandas} is newer than PySpark knows: pip install "pandas<3"')
        return found


def inspect_machine() -> Machine:
    """Return the facts about this machine."""
    temporary = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or tempfile.gettempdir()
    return Machine(
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        packages={name: package_version(name) for name in PACKAGES},
        memory_bytes=_available_bytes(),
        temporary=temporary,
        temporary_bytes=shutil.disk_usage(temporary).free if Path(temporary).is_dir() else 0,
        shell=shutil.which("bash"),
    )


def _available_bytes() -> int | None:
    with suppress(OSError):
        return memory_bytes(Path("/proc/meminfo").read_text(encoding="ascii"), _cgroup_left_bytes())
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup_left_bytes() -> int | None:
    """Return the memory that a container may still allocate, or None without a known limit."""
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" is not a number
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    return None


def memory_bytes(meminfo: str, left_bytes: int | None) -> int | None:
    """Return the memory available to new programs, at most `left_bytes`, or None if it is unknown."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            available = int(value.split()[0]) * 1024
            return available if left_bytes is None else min(available, max(0, left_bytes))
    return left_bytes


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The small job: a function that starts Spark, or None to run no job, and the number of rows."""

    spark: Callable[[], SparkSession] | None = None
    rows: int = ROWS


def add_doctor(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "doctor", "check whether the pipeline can run on this machine")
    add_switch(command, "--job", "also start Spark and run a job of three seconds")
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    options = DoctorOptions((lambda: spark_of(arguments)) if arguments.job else None)
    return carry_out(arguments, "doctor", lambda progress: run_doctor(options, progress), engine=arguments.job)


def run_doctor(options: DoctorOptions, progress: Progress) -> Summary:
    """Examine the machine, run the small job if requested, and return the findings."""
    machine, found = inspect_machine(), java.search(os.environ)
    values: dict[str, Any] = {**asdict(machine), "warnings": machine.warnings, **_java_values(found), "job": None}
    del values["shell"]
    lines, code = [*_machine_lines(machine), *_java_lines(found)], OK
    if machine.missing:
        lines.append(f'{", ".join(machine.missing)} missing: pip install ".[spark]" in a clone of SlotMQ')
        code = USAGE
    elif found.java is None:
        lines.append(str(java.NoJava(found.refused)))
        code = NO_JAVA
    elif options.spark is None:
        lines.append("Spark can start here; --job tries it")
    else:
        try:
            job = values["job"] = _try_out(options.spark, options.rows, progress)
            rows = f"{options.rows:,} rows went through Python in {job['job_s']} s"
            lines += [f"job      Spark started in {job['start_s']} s; {rows}", "the pipeline can run here"]
        except Exception as error:  # noqa: BLE001 - a failed job must not hide the other findings
            failure = failure_of(error)
            values["failure"], code = str(failure), failure.code
            lines.append(f"job      {failure}")
    return Summary(values, code, tuple(lines))


def _try_out(start: Callable[[], SparkSession], rows: int, progress: Progress) -> dict[str, float]:
    progress.step("starting Spark")
    began = time.monotonic()
    spark = start()
    started = time.monotonic()
    progress.step("running a job")
    count_rows(spark, rows)
    return {"start_s": round(started - began, 1), "rows": rows, "job_s": round(time.monotonic() - started, 1)}


def count_rows(spark: SparkSession, rows: int) -> None:
    """Send rows through Python workers and a shuffle, and count them. Raises: JobFailed if the number is wrong."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    groups = spark.range(rows).mapInArrow(same, "id bigint").selectExpr(f"id % {GROUPS} AS place").groupBy("place")
    counted = sum(row["count"] for row in groups.count().collect())
    if counted != rows:
        raise JobFailed(f"a job over {rows} rows counted {counted}")


def _java_values(found: Search) -> dict[str, Any]:
    one = found.java
    used = one and {"version": one.version, "source": one.source, "home": str(one.where), "shim": one.shimmed}
    return {"java": used, "refused": [asdict(each) for each in found.refused]}


def _machine_lines(machine: Machine) -> Iterator[str]:
    yield f"python   {machine.python}, {machine.cores} cores"
    yield "packages " + ", ".join(f"{name} {found or 'missing'}" for name, found in machine.packages.items())
    memory = "unknown" if machine.memory_bytes is None else f"{size_text(machine.memory_bytes)} available"
    yield f"memory   {memory}"
    yield f"space    {size_text(machine.temporary_bytes)} in {machine.temporary}"
    if machine.shell is None:
        yield "shell    no bash, which Spark's launcher needs"
    yield from (f"warning  {each}" for each in machine.warnings)


def _java_lines(found: Search) -> Iterator[str]:
    for each in found.refused:
        yield f"java     {each.source}: {f'{each.where}: ' if each.where else ''}{each.reason}"
    if found.java is not None:
        shim = ", with a launcher as it has no vector module" if found.java.shimmed else ""
        yield f"java     {found.java.source}: {found.java.where}: {found.java.version}{shim}"
