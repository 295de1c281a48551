"""Publish rows in Spark's Python workers, for the sink and for jobs.

Refused rows are stored in Parquet files in a folder, whose log names the valid files:

    data/<uuid>.parquet            written by one attempt of a task
    _log/<run>-<batch>.json        the files of the successful attempts, written once, by the commit

A file that is not in the log is not valid; a failed attempt may have left it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual alias
from pyspark.sql.datasource import WriterCommitMessage

from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink, LinkLost, LinkRefused
from broker.pipeline.faults import JobFailed, restated, without_worker_trace
from broker.pipeline.lake.place import Disk
from broker.pipeline.routes.key_map import KeyMap
from broker.pipeline.sink.amqp_publisher import CLIENT, AmqpPublisher, RefusedMessage
from broker.pipeline.sink.rows import SinkOptions, SinkRows
from broker.pipeline.spark.tasks import session_setting, tasks_at_once

DATA, LOG = "data", "_log"
UNWRITTEN_MAX: Final = 5_000  # rows in memory before they are written

BAD_SCHEMA: Final = pa.schema(
    [
        ("seal", pa.int64()),
        ("slot", pa.int64()),
        ("offset", pa.int64()),
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("properties_raw", pa.binary()),
        ("body", pa.binary()),
        ("code", pa.int32()),  # AMQP's reply code; 0 for a full queue, or a row that cannot be a message
        ("reason", pa.string()),
    ]
)


class BadRecordFile:
    """The file for the refused rows of one attempt of a task. It is created only if there are any.

    Invariant: at the end of `with` the file is synced to disk or, after an exception, removed if possible.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATA / f"{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._unwritten: list[RefusedMessage] = []
        self.rows = 0

    @property
    def name(self) -> str:
        return "" if self._writer is None else self._path.name

    def add(self, refused: RefusedMessage) -> None:
        self.rows += 1
        self._unwritten.append(refused)
        if len(self._unwritten) >= UNWRITTEN_MAX:
            self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as failed:
            failed.callback(self._discard)
            if kind is None:
                self._finish()
                failed.pop_all()

    def _finish(self) -> None:
        self._write()
        if self._writer is not None:
            self._writer.close()
            disk = Disk()
            disk.sync_file(self._path)
            disk.sync_folder(self._path.parent)

    def _discard(self) -> None:
        with suppress(OSError, pa.ArrowException), ExitStack() as both:
            both.callback(self._path.unlink, missing_ok=True)
            if self._writer is not None:
                self._writer.close()

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if not unwritten:
            return
        if self._writer is None:
            Disk().make_folder(self._path.parent)
            self._writer = pq.ParquetWriter(self._path, BAD_SCHEMA, compression="zstd")
        messages = [refused.message for refused in unwritten]
        places: list[Any] = [message[5] for message in messages]
        columns = [
            *([place[at] for place in places] for at in range(3)),
            *([message[at] for message in messages] for at in range(4)),
            [refused.code for refused in unwritten],
            [refused.reason for refused in unwritten],
        ]
        self._writer.write_table(pa.table(columns, schema=BAD_SCHEMA))


class BadRecordLog:
    """The log of the valid files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, run: str, batch: int, names: Sequence[str]) -> None:
        """Log the files of a batch, or remove them if the batch has been logged before."""
        disk = Disk()
        if not names:
            return
        folder = self._folder / LOG
        disk.make_folder(folder)
        whole = folder / f".{uuid.uuid4().hex}"
        try:
            with disk.create(whole) as file:
                file.write(json.dumps({"format": 1, "files": sorted(names)}).encode())
                disk.sync(file)
            if not disk.link(whole, folder / f"{run}-{batch:020}.json"):
                self.remove(names)
        finally:
            whole.unlink(missing_ok=True)
        disk.sync_folder(folder)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self._folder / DATA / name).unlink(missing_ok=True)

    def files(self) -> list[str]:
        """Return the paths of the valid files, for `spark.read.parquet(*files)`."""
        folder = self._folder / LOG
        names = [name for name in Disk().list(folder) if name.endswith(".json")]
        found = [json.loads((folder / name).read_bytes())["files"] for name in names]
        return [str(self._folder / DATA / name) for files in found for name in files]


COLUMNS: Final = (
    "vhost", "queue", "slot", "seal", "offset", "ts", "exchange", "routing_key", "properties_raw", "body",
    "store", "incarnation",
)  # fmt: skip
"""The columns that are needed to publish a message again."""
SLEEP_MIN_S: Final = 0.05
SLEEP_MAX_S: Final = 0.5
RUN_NAME: Final = "run"
WORKER_IDLE: Final = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
TALLY_DDL: Final = "rows bigint, refused bigint, dropped bigint, bytes bigint, file string"


@dataclass(frozen=True)
class Tally(WriterCommitMessage):
    """The counts of one task: all rows, the refused ones, and those that the broker dropped as duplicates.

    Shapes: `bytes` is the size of the column `body`; `file` names the file of refused rows, or is "" without any.
    """

    rows: int = 0
    refused: int = 0
    dropped: int = 0
    bytes: int = 0
    file: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """The original timing, `speed` times as fast. A message with time `first_us` is due at the Unix time `began_s`."""

    speed: float
    first_us: int
    began_s: float

    def parts(self, batch: pa.RecordBatch, idle: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch in order as they become due, and call `idle` before each sleep."""
        due = [self.began_s + (time_us - self.first_us) / 1e6 / self.speed for time_us in due_us(batch.column("ts"))]
        at = 0
        while at < len(due):
            wait_s = due[at] - time.time()
            if wait_s > 0:
                idle()
                time.sleep(min(max(wait_s, SLEEP_MIN_S), SLEEP_MAX_S))
                continue
            end = bisect_right(due, time.time(), at)
            yield batch.slice(at, end - at)
            at = end


def publish_batches(options: SinkOptions, batches: Iterable[pa.RecordBatch], pace: Pace | None = None) -> Tally:
    """Publish the batches of one task over a connection of its own.

    Invariant: every counted row is confirmed, or in the file of refused rows.
    Raises: PublishFailed.
    """
    messages = SinkRows(options)
    publisher: AmqpPublisher | None = None
    rows = size = 0
    with without_worker_trace(), ExitStack() as opened:
        file = None if options.bad_records is None else opened.enter_context(BadRecordFile(options.bad_records))
        for batch in batches:
            if not batch.num_rows:  # an empty partition does not open a connection
                continue
            if publisher is None:
                add = {} if file is None else {"refused": file.add}
                publisher = opened.enter_context(AmqpPublisher(options.address, options.publisher, **add))
            rows += batch.num_rows
            size += batch.column("body").nbytes
            for part in (batch,) if pace is None else pace.parts(batch, publisher.drain):
                publisher.publish(messages.messages(part, publisher.refused))
    refused, name = (0, "") if file is None else (file.rows, file.name)
    return Tally(rows, refused, 0 if publisher is None else publisher.dropped, size, name)


def digest(what: Mapping[str, Any]) -> str:
    """Return a short name that identifies values, such as the selection and the target of a replay."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def check_reachable(address: AmqpAddress) -> None:
    """Check that a broker accepts the login, before the slow start of Spark. Raises: JobFailed."""
    with restated((LinkLost, LinkRefused), JobFailed):
        BlockingLink(address, {**CLIENT, "connection_name": "slotmq pipeline"}).close()


def publish_frame(
    frame: DataFrame, options: SinkOptions, pace: Pace | None = None, *, key_map: KeyMap | None = None, batch: int = 0
) -> dict[str, int]:
    """Publish the messages of a frame; return how many were published, refused and dropped, and the size of the bodies.

    Refused messages are logged in the folder `bad_records` under the number `batch`. Messages of one queue with one
    routing key are sent in the order of the queue, except those that a full queue refuses at first.
    """
    assert options.bad_records is not None, "a job stores refused messages"
    log = BadRecordLog(options.bad_records)
    spark = frame.sparkSession
    lanes = tasks_at_once(spark)  # all run at the same time, each with an equal share of the rate
    lane = ("vhost", "queue", "routing_key")
    frame = frame.select(*COLUMNS)
    if key_map is not None:
        frame = with_mapped_keys(frame, key_map)
    frame = frame.repartition(lanes, *lane)
    history = ["store", "seal", "incarnation", "offset"]
    order = ["vhost", "queue", *history]
    if pace is not None:  # order by time, but keep the order of each queue
        frame = frame.withColumn("due", F.max("ts").over(Window.partitionBy(*lane).orderBy(*history)))
        order = ["due", *order]
    options = replace(options, publisher=replace(options.publisher, rate=options.publisher.rate / lanes))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([asdict(publish_batches(options, batches, pace))])

    ready = frame.sortWithinPartitions(*order).select(*COLUMNS)
    with session_setting(spark, WORKER_IDLE, "0"):  # no time limit, because a worker may publish slowly
        tallies = ready.mapInArrow(task, TALLY_DDL).collect()
    log.commit(RUN_NAME, batch, [tally["file"] for tally in tallies if tally["file"]])
    total = {name: sum(tally[name] for tally in tallies) for name in ("rows", "refused", "dropped", "bytes")}
    return {"published": total.pop("rows") - total["refused"] - total["dropped"], **total}


def due_us(times: Any) -> list[int]:
    """Return the times of rows in microseconds, none earlier than the one before."""
    found: Any = np.asarray(times.cast(pa.int64()).fill_null(0))
    return [int(time_us) for time_us in np.maximum.accumulate(found)]


def with_mapped_keys(frame: DataFrame, key_map: KeyMap) -> DataFrame:
    """Return a frame with mapped routing keys; only the keys pass through Python."""
    if not len(key_map):
        return frame
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def mapped(keys: Any) -> Any:
        return keys.map({key: key_map(key) for key in keys.unique()})

    mapped.__annotations__ = {"keys": pd.Series, "return": pd.Series}  # Spark evaluates them as types, not as text
    return frame.withColumn("routing_key", pandas_udf(mapped, "string")("routing_key"))
