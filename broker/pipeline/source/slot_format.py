"""The format `slotmq-slots`: one row for each slot, for programs that fetch the messages themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from broker.pipeline.faults import said_plainly
from broker.pipeline.source.catalog import Catalog, open_catalog
from broker.pipeline.source.message_reader import arrow_schema_of
from broker.pipeline.source.message_run import SlotRun
from broker.pipeline.source.schema import SLOTS_ARROW_SCHEMA, SLOTS_DDL
from broker.pipeline.source.seal_stream import SealStream
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_source import SlotSource

__all__ = ["SlotFormat"]

READER: Final = "a list of slots"


class SlotFileReader(DataSourceReader):
    """The reader of the current slots."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = arrow_schema_of(schema, SLOTS_ARROW_SCHEMA)

    def partitions(self) -> list[InputPartition]:
        """Return runs of the slots. Raises: SlotGap, SourceRefused."""
        with said_plainly():
            source = SlotSource(self._options)
            try:
                return source.tasks(source.all_now(), READER)
            finally:
                source.catalog.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        return slot_batches(partition, self._schema)


class SlotStream(SealStream):
    """The stream of slots as they are sealed."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options)
        self._schema = arrow_schema_of(schema, SLOTS_ARROW_SCHEMA)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        return slot_batches(partition, self._schema)


class SlotFormat(DataSource):
    """The Spark format `slotmq-slots`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "slotmq-slots"

    def schema(self) -> str:
        """Return the columns of a slot."""
        return SLOTS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises: SourceRefused."""
        with said_plainly():
            return SlotFileReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. Raises: SourceRefused."""
        with said_plainly():
            return SlotStream(self.options, schema)


def slot_batches(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run; none for the partition that Spark makes if there are no runs."""
    if isinstance(partition, SlotRun) and partition.slots:
        with said_plainly():
            catalog = open_catalog(partition.path, partition.url)
            rows = [slot_row(catalog, slot) for slot in partition.slots]
        columns = [
            pa.array([row[name] for row in rows], pa.int64()).cast(kind)
            if pa.types.is_timestamp(kind)
            else pa.array([row[name] for row in rows], kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def slot_row(catalog: Catalog, slot: SlotHandle) -> dict[str, int | str | None]:
    """Return the columns of a slot. Units: times in microseconds."""
    return {
        "vhost": slot.vhost,
        "queue": slot.queue,
        "number": slot.number,
        "slot": slot.first,
        "seal": slot.seal,
        "first": slot.first,
        "end": slot.end,
        "count": slot.count,
        "bytes": slot.bytes,
        "first_ts": None if slot.first_ts_ms is None else slot.first_ts_ms * 1000,
        "last_ts": None if slot.last_ts_ms is None else slot.last_ts_ms * 1000,
        "crc": slot.crc,
        "store": slot.store,
        "path": catalog.location(slot),
        "incarnation": slot.incarnation,
    }
