"""The format `slotmq`: messages, read from slots and published to a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from broker.pipeline.faults import SinkRefused, said_plainly
from broker.pipeline.source.message_reader import MessageReader, arrow_schema_of, read_rows
from broker.pipeline.source.options import SourceOptions
from broker.pipeline.source.schema import ARROW_SCHEMA, ddl_of
from broker.pipeline.source.seal_stream import SealStream

__all__ = ["MessageFormat", "MessageStream", "SpeculatingMessageFormat"]


class MessageStream(SealStream):
    """The stream of messages, as their slots are sealed."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options)
        self._schema = arrow_schema_of(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        return read_rows(partition, self._schema)


class MessageFormat(DataSource):
    """The Spark format `slotmq`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "slotmq"

    def schema(self) -> str:
        """Return the columns of a message, or those that the option names. Raises: SourceRefused."""
        with said_plainly():
            return ddl_of(ARROW_SCHEMA, SourceOptions.read(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises: SourceRefused."""
        with said_plainly():
            return MessageReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. Raises: SourceRefused."""
        with said_plainly():
            return MessageStream(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the publisher of a frame's rows. Raises: SourceRefused."""
        from broker.pipeline.sink.writers import batch_writer

        with said_plainly():
            return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the publisher of a stream's rows. Raises: SourceRefused."""
        from broker.pipeline.sink.writers import stream_writer

        with said_plainly():
            return stream_writer(dict(self.options), schema, overwrite)


class SpeculatingMessageFormat(MessageFormat):
    """The format for sessions with speculative execution: it reads, and refuses to write."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse to write. Raises: SinkRefused."""
        with said_plainly():
            raise speculation()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse to write. Raises: SinkRefused."""
        with said_plainly():
            raise speculation()


def speculation() -> SinkRefused:
    """Return why a session with speculative execution does not write."""
    return SinkRefused("the session has spark.speculation, whose second attempts would publish beside the first")
