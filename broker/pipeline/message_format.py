"""The format `slotmq`: messages, read from slots and written to a broker."""

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
    """Messages as they are sealed."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options)
        self._schema = arrow_schema_of(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        return read_rows(partition, self._schema)


class MessageFormat(DataSource):
    """What Spark knows as `slotmq`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "slotmq"

    def schema(self) -> str:
        """Return the columns of a message, or those that the option names. Raises: SourceRefused."""
        with said_plainly():
            return ddl_of(ARROW_SCHEMA, SourceOptions.read(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads once. Raises: SourceRefused."""
        with said_plainly():
            return MessageReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what follows. Raises: SourceRefused."""
        with said_plainly():
            return MessageStream(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what publishes the rows of a frame. Raises: SourceRefused."""
        from broker.pipeline.sink.writers import batch_writer

        with said_plainly():
            return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what publishes the rows of a stream. Raises: SourceRefused."""
        from broker.pipeline.sink.writers import stream_writer

        with said_plainly():
            return stream_writer(dict(self.options), schema, overwrite)


class SpeculatingMessageFormat(MessageFormat):
    """The same for sessions that run a second attempt of a task beside the first: they read and do not write."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse. Raises: SinkRefused."""
        with said_plainly():
            raise speculation()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse. Raises: SinkRefused."""
        with said_plainly():
            raise speculation()


def speculation() -> SinkRefused:
    """Return why such a session does not write."""
    return SinkRefused("the session has spark.speculation, whose second attempts would publish beside the first")
