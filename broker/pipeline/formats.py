"""The formats that the pipeline adds to Spark, by their names in `spark.read.format(...)`.

slotmq          messages: read from slots, once or as a stream; written to a broker
slotmq-slots    one row per slot, for programs that fetch the messages themselves
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from broker.pipeline.faults import SinkRefused, SourceRefused, without_worker_trace
from broker.pipeline.sink.publishing import BadRecordLog, Tally, publish_batches
from broker.pipeline.sink.rows import SinkOptions, check_message_columns
from broker.pipeline.source.catalog import Catalog, open_catalog
from broker.pipeline.source.message_run import SlotRun, read_run
from broker.pipeline.source.options import SourceOptions, check_columns
from broker.pipeline.source.schema import ARROW_SCHEMA, SLOTS_ARROW_SCHEMA, ddl_of
from broker.pipeline.source.seal_stream import RowReader, SealStream
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_source import SlotSource
from broker.pipeline.spark.tasks import frame_of

READER: Final = "a batch read"


class SlotReader(DataSourceReader):
    """The reader of a batch query. Spark pickles it into tasks, which open their own resources."""

    def __init__(self, options: Mapping[str, str], rows: RowReader) -> None:
        self._options = dict(options)
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Return the slots that can contain selected rows, split into tasks. Raises: SlotGap, SourceRefused."""
        with without_worker_trace():
            return _tasks_now(SlotSource(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows(partition)


class SlotFormat(DataSource):
    """The Spark format `slotmq-slots`."""

    known = SLOTS_ARROW_SCHEMA

    @classmethod
    def name(cls) -> str:
        return "slotmq-slots"

    def schema(self) -> str:
        """Return the columns as DDL."""
        return ddl_of(self.known)

    def rows(self, schema: pa.Schema) -> RowReader:
        """Return the function that yields the rows of a run of slots."""
        return partial(slot_batches, schema=schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises: SourceRefused."""
        with without_worker_trace():
            return SlotReader(self.options, self.rows(arrow_schema_of(schema, self.known)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. Raises: SourceRefused."""
        with without_worker_trace():
            return SealStream(self.options, self.rows(arrow_schema_of(schema, self.known)))


class MessageFormat(SlotFormat):
    """The Spark format `slotmq`."""

    known = ARROW_SCHEMA
    speculates = False  # whether the session has speculative execution; if so, writing is refused

    @classmethod
    def name(cls) -> str:
        return "slotmq"

    def schema(self) -> str:
        """Return the columns that the option `columns` names, or all, as DDL. Raises: SourceRefused."""
        with without_worker_trace():
            return ddl_of(ARROW_SCHEMA, SourceOptions.read(self.options).columns)

    def rows(self, schema: pa.Schema) -> RowReader:
        return partial(message_batches, schema=schema)

    def writer(self, schema: StructType, overwrite: bool) -> Sink:
        """Return the publisher of a frame's or a stream's rows. Raises: SinkRefused."""
        with without_worker_trace():
            if self.speculates:
                raise SinkRefused("the session has spark.speculation, whose concurrent attempts would publish again")
            return Sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Sink:
        return self.writer(schema, overwrite)


class SpeculatingMessageFormat(MessageFormat):
    """The format `slotmq` for sessions with speculative execution: it reads, but refuses to write."""

    speculates = True


def live_messages(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return a frame of the messages that the options select; the slots are chosen in this process.

    Raises: SlotGap, SourceRefused.
    """
    source = SlotSource(options)
    tasks, columns = _tasks_now(source), source.options.columns
    rows = partial(message_batches, schema=pa.schema([ARROW_SCHEMA.field(name) for name in columns]))
    return frame_of(spark, rows, tasks, ddl_of(ARROW_SCHEMA, columns))


def _tasks_now(source: SlotSource) -> list[InputPartition]:
    with closing(source.catalog):
        return source.tasks(source.all_now(), READER)


def arrow_schema_of(schema: StructType, known: pa.Schema = ARROW_SCHEMA) -> pa.Schema:
    """Return the Arrow schema of the columns that Spark requests. Raises: SourceRefused for a wrong column or type."""
    check_columns(schema.fieldNames(), known.names)
    for field in schema.fields:
        wanted, found = ddl_of(known, [field.name]).rpartition(" ")[2], field.dataType.simpleString()
        if wanted != found:
            raise SourceRefused(f"column {field.name!r} is of type {wanted}, not {found}")
    return pa.schema([known.field(field.name).with_nullable(field.nullable) for field in schema.fields])


def message_batches(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a run, or nothing for the empty partition that Spark makes if there are no runs."""
    if isinstance(partition, SlotRun):
        with without_worker_trace():
            yield from read_run(partition, schema)


def slot_batches(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a row for each slot of a run, or nothing for the empty partition that Spark makes without runs."""
    if isinstance(partition, SlotRun) and partition.slots:
        with without_worker_trace():
            catalog = open_catalog(partition.path, partition.url)
            rows = [slot_row(catalog, slot) for slot in partition.slots]
        yield pa.RecordBatch.from_pylist(rows, schema)


def slot_row(catalog: Catalog, slot: SlotHandle) -> dict[str, Any]:
    """Return the columns of a slot. Units: times in microseconds."""
    found = {name: getattr(slot, name, None) for name in SLOTS_ARROW_SCHEMA.names}
    times = {"first_ts": slot.first_ts_ms, "last_ts": slot.last_ts_ms}
    times = {name: None if at_ms is None else at_ms * 1000 for name, at_ms in times.items()}
    return {**found, **times, "slot": slot.first, "path": catalog.location(slot)}


class Sink(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """The publisher of a frame's or a stream's rows. On the driver it logs which files of bad rows are valid.

    Invariant: every row that a task reports is confirmed, or in a file of bad rows.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check the arguments. Raises: SinkRefused."""
        if overwrite:
            raise SinkRefused("messages can be added only: use mode append")
        self._options = SinkOptions.read(options)
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_message_columns(columns, self._options)
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Tally:
        """Publish the rows of one task. Raises: PublishFailed."""
        return publish_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Log the files of bad rows; for a stream, those of one batch."""
        if self._options.bad_records is not None:
            run = self._run if batchId is None else self._query_id() or self._run
            BadRecordLog(self._options.bad_records).commit(run, batchId or 0, _files(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Remove the files of bad rows; published messages stay published."""
        if self._options.bad_records is not None:
            BadRecordLog(self._options.bad_records).remove(_files(messages))

    def _query_id(self) -> str:
        """Return the stream's id from its checkpoint, or "" if there is none. The id survives a restart."""
        if self._options.checkpoint is None:
            return ""
        try:
            return str(uuid.UUID(json.loads((self._options.checkpoint / "metadata").read_bytes())["id"]))
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [message.file for message in messages if isinstance(message, Tally) and message.file]
