"""The Spark tasks that simulate plans, one each, and the files of results."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.figures.numerals import many
from broker.pipeline.job_failure import JobFailed
from broker.pipeline.progress import Progress
from broker.pipeline.simulate.plan import MESSAGES, SimulationPlan
from broker.pipeline.simulate.simulated_row import SIMULATED_COLUMNS
from broker.pipeline.spark.tasks import frame_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["FORMATS", "simulate_plans", "write_results", "write_whole"]

FORMATS: Final = (".parquet", ".csv")
LOOK_EVERY_S: Final = 2.0


def simulate_plans(spark: SparkSession, plans: Sequence[SimulationPlan], progress: Progress) -> list[dict[str, Any]]:
    """Simulate each plan in a task of its own, and return the rows in the order of the plans."""
    ddl = ", ".join(f"{name} {kind}" for name, kind in SIMULATED_COLUMNS.items())
    with _told(spark, progress, f"of {many(len(plans), 'simulation')} done"):
        return [row.asDict() for row in frame_of(spark, _simulate, plans, ddl).collect()]


def write_results(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as Parquet or CSV, by the name of the file. Raises: JobFailed."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(list(rows), schema=_schema())
    write_whole(path, lambda to: pc.write_csv(table, to) if path.suffix == ".csv" else pq.write_table(table, to))


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file that appears only when it is complete. Raises: JobFailed."""
    writing = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write(writing)
        writing.replace(path)
    except OSError as error:
        raise JobFailed(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            writing.unlink()


@contextmanager
def _told(spark: SparkSession, progress: Progress, what: str) -> Iterator[None]:
    """Tell meanwhile how many tasks have ended; a session over Connect does not know."""
    progress.step(f"0 {what}")
    if not hasattr(spark, "sparkContext"):
        yield
        return
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            progress.step(f"{sum(stage.numCompletedTasks for stage in stages if stage is not None)} {what}")

    thread = threading.Thread(target=look, name="simulations", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _simulate(plan: SimulationPlan) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from broker.pipeline.simulate.messages_level import run_messages
    from broker.pipeline.simulate.tables_level import run_tables

    row = run_messages(plan) if plan.level == MESSAGES else run_tables(plan)
    yield pa.RecordBatch.from_pylist([row.to_json(plan)], schema=_schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"long": pa.int64(), "double": pa.float64(), "string": pa.string()}
    return pa.schema([(name, kinds[kind]) for name, kind in SIMULATED_COLUMNS.items()])
