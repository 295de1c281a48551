"""Run a Python function as Spark tasks, in a session of this process or over Connect.

The tasks run in the Python workers that all tasks share. A Python data source would start more processes, to plan a
read and to commit a write.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
PARALLELISM: Final = "spark.sql.leafNodeDefaultParallelism"
RESULT: Final = "item long, result binary"


def run_tasks(spark: SparkSession, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result of a function for each item, in the order of the items; one task per item.

    Shapes: function, items and results are pickled. Raises: Spark's exception for an exception in a task.
    """

    def results(item: int) -> Iterator[pa.RecordBatch]:
        made = pickle.dumps(work(items[item]))
        yield pa.RecordBatch.from_arrays(
            [pa.array([item], pa.int64()), pa.array([made], pa.binary())], names=["item", "result"]
        )

    rows = _tasks(spark, results, len(items), RESULT).collect() if items else []
    return [pickle.loads(row.result) for row in sorted(rows, key=lambda row: int(row.item))]  # noqa: S301 - our own


def frame_of(
    spark: SparkSession, rows: Callable[[Item], Iterator[pa.RecordBatch]], items: Sequence[Item], schema: str
) -> DataFrame:
    """Return a frame of the rows that a function yields for each item; one task per item. Shapes: `schema` is DDL."""
    return _tasks(spark, lambda item: rows(items[item]), len(items), schema)


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks a session can run at the same time; over Connect, this is a setting of the server."""
    if hasattr(spark, "sparkContext"):
        return max(1, int(spark.sparkContext.defaultParallelism))
    return int(spark.conf.get(PARALLELISM, None) or os.cpu_count() or 1)


@contextmanager
def session_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of a session within a context."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def _tasks(
    spark: SparkSession, batches: Callable[[int], Iterator[pa.RecordBatch]], count: int, schema: str
) -> DataFrame:
    def partition_batches(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from batches(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(partition_batches, schema)
