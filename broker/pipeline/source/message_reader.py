"""Reads messages once: `spark.read.format("slotmq")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.pipeline.faults import SourceRefused, said_plainly
from broker.pipeline.source.message_run import SlotRun, read_run
from broker.pipeline.source.options import check_columns
from broker.pipeline.source.schema import ARROW_SCHEMA, ddl_of
from broker.pipeline.source.slot_source import SlotSource
from broker.pipeline.spark.tasks import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["MessageReader", "arrow_schema_of", "live_messages", "read_rows"]

READER: Final = "a batch read"


class MessageReader(DataSourceReader):
    """The reader of a batch. It is pickled into tasks, which open their own resources."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check the arguments. Raises: SourceRefused for an unknown column."""
        self._options = dict(options)
        self._schema = arrow_schema_of(schema)

    def partitions(self) -> list[InputPartition]:
        """Return runs of the slots that can have a wanted row. Raises: SlotGap, SourceRefused."""
        with said_plainly():
            source = SlotSource(self._options)
            try:
                slots = source.all_now()
            finally:
                source.catalog.close()
            return source.tasks(slots, READER)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        return read_rows(partition, self._schema)


def live_messages(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the messages that options of the source select, as `format("slotmq")` would, planned in this process.

    Raises: SlotGap, SourceRefused.
    """
    source = SlotSource(options)
    try:
        tasks = source.tasks(source.all_now(), READER)
    finally:
        source.catalog.close()
    columns = source.options.columns
    rows = partial(read_rows, schema=pa.schema([ARROW_SCHEMA.field(name) for name in columns]))
    return frame_of(spark, rows, tasks, ddl_of(ARROW_SCHEMA, columns))


def read_rows(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run; none for the partition that Spark makes if there are no runs."""
    if isinstance(partition, SlotRun):
        with said_plainly():
            yield from read_run(partition, schema)


def arrow_schema_of(schema: StructType, known: pa.Schema = ARROW_SCHEMA) -> pa.Schema:
    """Return the columns that Spark requests as an Arrow schema. Raises: SourceRefused for a column of another type."""
    check_columns(schema.fieldNames(), known.names)
    for field in schema.fields:
        wanted, found = ddl_of(known, [field.name]).rpartition(" ")[2], field.dataType.simpleString()
        if wanted != found:
            raise SourceRefused(f"column {field.name!r} is of type {wanted}, not {found}")
    return pa.schema([known.field(field.name).with_nullable(field.nullable) for field in schema.fields])
