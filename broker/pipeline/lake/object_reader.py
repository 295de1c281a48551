"""Reads the Parquet files of a bucket in Spark's Python workers: Spark itself has no file system for buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from broker.pipeline.lake.place import LakePlace
from broker.pipeline.spark.tasks import frame_of, tasks_at_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_objects"]

BATCH_ROWS: Final = 10_000
TASKS_A_SLOT: Final = 4


def read_objects(spark: SparkSession, place: LakePlace, paths: Sequence[str], ddl: str) -> DataFrame:
    """Return the rows of files. Shapes: columns that a file lacks are null."""
    names = [column.split("`")[1] for column in ddl.split(", ")]
    count = min(len(paths), TASKS_A_SLOT * tasks_at_once(spark))

    def read(share: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for path in share:
            yield from _rows(place, path, names)

    return frame_of(spark, read, [paths[at::count] for at in range(count)], ddl)


def _rows(place: LakePlace, path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from broker.pipeline.lake.bad_record import BAD_SCHEMA
    from broker.pipeline.lake.disk import ObjectDisk
    from broker.pipeline.source.schema import ARROW_SCHEMA

    schema = pa.unify_schemas([ARROW_SCHEMA, BAD_SCHEMA])
    wanted = pa.schema([schema.field(name) for name in names])
    with ObjectDisk(place.uri, place.options).files.open_input_file(path) as file:
        found = pq.ParquetFile(file)
        there = [name for name in names if name in found.schema_arrow.names]
        for batch in found.iter_batches(BATCH_ROWS, columns=there):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in there
                else pa.nulls(batch.num_rows, field.type)
                for field in wanted
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)
