"""The sink `slotmq`: publishes the rows of a frame or a stream to a broker, with confirms.

Spark may repeat a task, and a stream may repeat its last batch. Rows that have a place in a slot are numbered by it for
the producer of the options, so the broker confirms and drops a repeated message.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.pipeline.faults import SinkRefused, said_plainly
from broker.pipeline.sink.amqp_publisher import AmqpPublisher
from broker.pipeline.sink.bad_records import BadRecordLog
from broker.pipeline.sink.publishing import publish_batches
from broker.pipeline.sink.rows import SinkOptions, SinkRows, check_columns

__all__ = ["TaskPublished", "batch_writer", "stream_writer"]


@dataclass(frozen=True)
class TaskPublished(WriterCommitMessage):
    """The report of one task: messages sent, rows finally refused, and the file that holds them."""

    messages: int
    refused: int
    file: str


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Return the publisher of a frame's rows. Raises: SinkRefused."""
    return BatchSink(_checked(options, schema, overwrite=overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Return the publisher of a stream's rows. Raises: SinkRefused."""
    return StreamSink(_checked(options, schema, overwrite=overwrite))


def _checked(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise SinkRefused("messages can be added only: use mode append")
    found = SinkOptions.read(options)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, found)
    return found


class _Sink:
    """Publishes in tasks; on the driver it logs which files of bad rows count.

    Invariant: every row that a task reports is confirmed, or in its file.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskPublished:
        """Publish the rows of one task. Raises: PublishFailed."""
        options, rows = self._options, SinkRows(self._options)

        def publish(publisher: AmqpPublisher, batch: pa.RecordBatch) -> None:
            publisher.publish(rows.messages(batch, publisher.refused))

        with said_plainly():
            done = publish_batches(options.address, options.publisher, options.bad_records, iterator, publish)
        return TaskPublished(done.published, done.refused, done.file)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int, run: str) -> None:
        if self._options.bad_records is not None:
            BadRecordLog(self._options.bad_records).commit(run, batch, _files(messages))

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.bad_records is not None:
            BadRecordLog(self._options.bad_records).remove(_files(messages))


class BatchSink(_Sink, DataSourceArrowWriter):
    """Publishes the rows of a frame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the files of bad rows."""
        self._commit(messages, 0, self._run)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the bad rows of the successful tasks; published messages stay published."""
        self._abort(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Publishes the rows of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the files of bad rows of a batch."""
        self._commit(messages, batchId, self._query_id() or self._run)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the bad rows of the successful tasks."""
        self._abort(messages)

    def _query_id(self) -> str:
        """Return the stream's id, which survives a restart, from its checkpoint; empty if the checkpoint has none."""
        if self._options.checkpoint is None:
            return ""
        try:
            said = json.loads((self._options.checkpoint / "metadata").read_bytes())["id"]
            return str(uuid.UUID(said))
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [message.file for message in messages if isinstance(message, TaskPublished) and message.file]
