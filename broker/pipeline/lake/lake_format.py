"""`slotmq-lake`: how `writeStream` and `write` store the rows of `slotmq-slots`. Tasks copy, the driver commits.

path           the lake, a folder or s3://bucket/prefix; created if it does not exist
slots          the broker's data folder or http(s)://user:password@host:15672, the source of the rows' slots
query          the name of the writer in the lake's log; by default, for a stream, its id in the checkpoint
maxBad         the limit of unreadable messages in a batch: 5 or 0.1%
aws_*          of a lake in a bucket, as `deltalake` names them; else the variables of the worker's environment
skip           JSON, {store: {vhost: {tap: seal}}}: the lake already has the slots up to these seals
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from broker.pipeline.faults import LakeRefused, said_plainly
from broker.pipeline.lake.bad_record import BadShare
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.place import LakePlace
from broker.pipeline.lake.slot_copy import Copied, SlotCopy
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.local_path import local_path
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.spark.datasource_api import DataSourceStreamArrowWriter
from broker.slot_files.slot_view import SlotView

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LakeFormat", "LakeTarget", "Written", "absolute"]

SAME: Final = ("store", "incarnation", "seal", "vhost", "queue", "number", "first", "end", "count", "bytes", "crc")
TIMES: Final = ("first_ts", "last_ts")
URLS: Final = ("http://", "https://")
METADATA: Final = "metadata"  # in a checkpoint, with the id of its query


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The report of a task to the driver."""

    copied: Copied


@dataclass(frozen=True)
class LakeTarget:
    """The target of the rows of slots; it is pickled into the tasks."""

    lake: LakePlace
    slots: str | None
    query: str
    max_bad: BadShare
    skip: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    disk: Disk | None = None  # instead of the lake's own
    open_slot: Callable[[SlotHandle], SlotView] | None = None  # instead of a slot of `slots`

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Copy the slots of the rows, in a task; return the report for the commit."""
        return self.copy([handle for batch in batches for handle in _handles(batch)])

    def copy(self, slots: Sequence[SlotHandle]) -> Written:
        """Copy slots, in a task; return the report for the commit."""
        with said_plainly():
            handles = [handle for handle in slots if not self._skipped(handle)]
            if not handles:
                return Written(Copied())
            with SlotCopy(self.disk or self.lake.disk(), self.lake.root, self.query, self._opening()) as copy:
                if any(handle.seal == 0 for handle in handles):
                    raise LakeRefused("the slots of a snapshot have no seal; only those of a tap can go into a lake")
                copy.copy(sorted(handles, key=lambda one: (one.vhost, one.queue, one.first)))
                return Written(copy.finish())

    def _skipped(self, handle: SlotHandle) -> bool:
        archived = self.skip.get(handle.store, {}).get(handle.vhost, {}).get(handle.queue, 0)
        return 0 < handle.seal <= archived

    def _opening(self) -> Callable[[SlotHandle], SlotView]:
        from broker.pipeline.source.catalog import open_catalog, open_handle

        if self.open_slot is not None:
            return self.open_slot
        if self.slots is None:
            raise LakeRefused("slotmq-lake needs the option `slots`: the broker's data folder or its URL")
        url = self.slots.startswith(URLS)
        return partial(open_handle, open_catalog(url=self.slots) if url else open_catalog(path=self.slots))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Add a batch to the lake, in one transaction of each table."""
        with said_plainly():
            lake, made = Lake(self.lake, disk=self.disk), LakeBatch(self.query, batch, _sum(messages))
            copied = made.copied
            if self.max_bad.exceeded(copied.bad, copied.rows + copied.bad):
                lake.discard(made)
                raise LakeRefused(
                    f"{copied.bad:,} of {copied.rows + copied.bad:,} messages cannot be read, "
                    f"more than {self.max_bad}: none of the batch was taken"
                )
            lake.commit(made)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove files of tasks that will not be committed; a failed task has removed its own."""
        Lake(self.lake, disk=self.disk).discard(LakeBatch(self.query, 0, _sum(messages)))


def absolute(slots: str | None) -> str | None:
    """Return where slots are, independent of a task's working folder."""
    return slots if slots is None or slots.startswith(URLS) else str(local_path(slots).absolute())


def _sum(messages: Sequence[WriterCommitMessage | None]) -> Copied:
    return reduce(Copied.__add__, (message.copied for message in messages if isinstance(message, Written)), Copied())


def _handles(batch: pa.RecordBatch) -> Iterator[SlotHandle]:
    for row in batch.to_pylist():
        times: dict[str, Any] = {f"{name}_ms": _ms(row[name]) for name in TIMES}
        yield SlotHandle(**{name: row[name] for name in SAME}, **times)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


class LakeStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream; Spark makes one for the tasks and another for each commit."""

    def __init__(self, target: LakeTarget) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.target.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.target.abort(messages)


class LakeBatchWriter(DataSourceArrowWriter):
    """The writer of a frame, which is one batch of a query of its own."""

    def __init__(self, target: LakeTarget) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.target.commit(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.target.abort(messages)


class LakeFormat(DataSource):
    """The format. It only writes: `Lake(path).messages(spark)` reads, with Spark's own Parquet reader."""

    @classmethod
    def name(cls) -> str:
        return "slotmq-lake"

    def streamWriter(self, schema: Any, overwrite: bool) -> LakeStreamWriter:
        return LakeStreamWriter(self._target(schema, overwrite, self._query_of_checkpoint))

    def writer(self, schema: Any, overwrite: bool) -> LakeBatchWriter:
        return LakeBatchWriter(self._target(schema, overwrite, lambda: uuid.uuid4().hex))

    def schema(self) -> str:
        raise LakeRefused("slotmq-lake is for writing; Lake(path).messages(spark) reads a lake")

    def _target(self, schema: Any, overwrite: bool, query: Callable[[], str]) -> LakeTarget:
        with said_plainly():
            if overwrite:
                raise LakeRefused("a lake grows and is never overwritten: use the mode append")
            missing = [name for name in (*SAME, *TIMES) if name not in schema.names]
            if missing:
                raise LakeRefused(f"slotmq-lake takes the rows of slotmq-slots; these have no {', '.join(missing)}")
            options = self.options
            if not options.get("path"):
                raise LakeRefused("slotmq-lake needs the option `path`: the lake")
            lake = Lake(LakePlace.of(options["path"], dict(options)), create=True)
            return LakeTarget(
                lake=lake.place,
                slots=absolute(options.get("slots")),
                query=options.get("query") or query(),
                max_bad=BadShare.parse(options.get("maxBad", "0.1%")),
                skip=json.loads(options.get("skip", "{}")),
            )

    def _query_of_checkpoint(self) -> str:
        checkpoint = self.options.get("checkpointLocation")
        try:
            found = json.loads((local_path(checkpoint or "") / METADATA).read_text())
            return str(found["id"])
        except (OSError, ValueError, KeyError) as error:
            raise LakeRefused(
                "slotmq-lake needs the option `query`, or a checkpointLocation on a file system"
            ) from error
