"""Publishes rows in Spark's Python workers: what the sink and the jobs replay and deadletters share."""

from __future__ import annotations

import hashlib
import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual alias

from broker.amqp.content_header import FLAG_OF
from broker.amqp.header_edit import edit_header
from broker.amqp.wire import PROPERTIES_AT
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink, LinkLost, LinkRefused
from broker.pipeline.faults import JobFailed, restated, said_plainly
from broker.pipeline.routes.key_map import KeyMap
from broker.pipeline.sink.amqp_publisher import CLIENT, AmqpPublisher, Outgoing, PublisherOptions
from broker.pipeline.sink.bad_records import BadRecordFile, BadRecordLog
from broker.pipeline.sink.property_columns import FRONT, NO_PROPERTIES, Remembered
from broker.pipeline.sink.rows import sequence_of
from broker.pipeline.spark.tasks import session_setting, tasks_at_once

PROPERTY_NAMES: Final = tuple(FLAG_OF)
COLUMNS: Final = (
    "vhost", "queue", "slot", "seal", "offset", "ts", "exchange", "routing_key", "properties_raw", "body",
    "store", "incarnation",
)  # fmt: skip
"""The columns that are needed to publish a message again."""
PLACE: Final = ("seal", "slot", "offset", "store", "incarnation")
SLICE_S: Final = 0.05
LOOK_S: Final = 0.5
RUN: Final = "run"
WORKER_IDLE: Final = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
TALLY_DDL: Final = "published bigint, refused bigint, dropped bigint, bytes bigint, file string"


class Tally(NamedTuple):
    """The report of one task: messages sent, of these finally refused and already known to the broker.

    Shapes: `bytes` are those of columns `body`; `file` holds the refused.
    """

    published: int = 0
    refused: int = 0
    dropped: int = 0
    bytes: int = 0
    file: str = ""


def publish_batches(
    address: AmqpAddress,
    options: PublisherOptions,
    refused: Path | None,
    batches: Iterable[pa.RecordBatch],
    publish: Callable[[AmqpPublisher, pa.RecordBatch], None],
) -> Tally:
    """Publish the batches of one task over a connection of its own. Shapes: `refused` is the folder for refused rows.

    Invariant: every counted row is confirmed, or in the file.
    Raises: PublishFailed.
    """
    publisher: AmqpPublisher | None = None
    size = 0
    with ExitStack() as opened:
        file = None if refused is None else opened.enter_context(BadRecordFile(refused))
        for batch in batches:
            if batch.num_rows:  # an empty partition opens no connection
                if publisher is None:
                    add = {} if file is None else {"refused": file.add}
                    publisher = opened.enter_context(AmqpPublisher(address, options, **add))
                size += batch.column("body").nbytes
                publish(publisher, batch)
    if publisher is None:
        return Tally()
    rows, name = (0, "") if file is None else (file.rows, file.name)
    return Tally(publisher.published, rows, publisher.dropped, size, name)


@dataclass(frozen=True, slots=True)
class HeaderChanges:
    """Sets headers, and drops headers and properties."""

    set_headers: Mapping[str, str] = field(default_factory=dict)
    drop_headers: tuple[str, ...] = ()
    drop_properties: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.set_headers or self.drop_headers or self.drop_properties)

    def __call__(self, properties: bytes) -> bytes:
        """Return properties, from their flags on, with the changes."""
        return edit_header(
            FRONT + properties,
            set_headers=self.set_headers,
            drop_headers=self.drop_headers,
            drop_properties=self.drop_properties,
        )[PROPERTIES_AT:]


@dataclass(frozen=True, slots=True)
class Publishing:
    """How rows are published.

    Shapes: `exchange` None keeps each message's own; `refused` is the folder for messages that the broker refuses.
    Units: with a `speed`, a message is due (its time - `first_us`) / speed after `began_s`, in seconds since 1970.
    """

    address: AmqpAddress
    options: PublisherOptions
    refused: str
    exchange: str | None = None
    changes: HeaderChanges = field(default_factory=HeaderChanges)
    speed: float = 0.0
    first_us: int = 0
    began_s: float = 0.0


def digest(what: Mapping[str, Any]) -> str:
    """Return a short name that identifies the replay: its selection and its target."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def check_reachable(address: AmqpAddress) -> None:
    """Check that a broker accepts the login, before the slow start of Spark. Raises: JobFailed."""
    with restated((LinkLost, LinkRefused), JobFailed):
        BlockingLink(address, {**CLIENT, "connection_name": "slotmq pipeline"}).close()


def publish_frame(
    frame: DataFrame, how: Publishing, key_map: KeyMap | None = None, *, batch: int = 0
) -> dict[str, int]:
    """Publish the messages of a frame; return how many were published, refused and dropped, and the bytes of bodies.

    Refused messages are in the folder under the number of the batch.
    The messages of one queue under one routing key are published in the order of the queue.
    """
    spark = frame.sparkSession
    lanes = tasks_at_once(spark)  # all lanes run at once: each has its share of the rate
    lane = ("vhost", "queue", "routing_key")
    frame = frame.select(*COLUMNS)
    if key_map is not None and len(key_map):
        frame = frame.withColumn("routing_key", _mapped(key_map)(F.col("routing_key")))
    frame = frame.repartition(lanes, *lane)
    history = ["store", "seal", "incarnation", "offset"]
    order = ["vhost", "queue", *history]
    if how.speed:  # by time, but each message after its predecessors in the queue
        frame = frame.withColumn("due", F.max("ts").over(Window.partitionBy(*lane).orderBy(*history)))
        order = ["due", *order]
    if how.options.rate:
        how = replace(how, options=replace(how.options, rate=how.options.rate / lanes))
    ready = frame.sortWithinPartitions(*order).select(*COLUMNS)
    with session_setting(spark, WORKER_IDLE, "0"):  # a slow rate is no hang, and the publisher has limits of its own
        tallies = ready.mapInArrow(publish_rows(how), TALLY_DDL).collect()
    BadRecordLog(Path(how.refused)).commit(RUN, batch, [tally["file"] for tally in tallies if tally["file"]])
    return {name: sum(tally[name] for tally in tallies) for name in ("published", "refused", "dropped", "bytes")}


def publish_rows(how: Publishing) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task that publishes rows with COLUMNS, in their order, and yields its tally. Raises: PublishFailed."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        changed: Remembered[bytes, bytes] = Remembered(how.changes or bytes)

        def publish(publisher: AmqpPublisher, batch: pa.RecordBatch) -> None:
            rows = list(outgoing(how, batch, changed))
            if how.speed:
                publish_at_speed(publisher, how, rows, batch.column("ts"))
            else:
                publisher.publish(rows)

        with said_plainly():
            tally = publish_batches(how.address, how.options, Path(how.refused), batches, publish)
        yield pa.RecordBatch.from_pylist([tally._asdict()])

    return task


def outgoing(how: Publishing, batch: pa.RecordBatch, changed: Mapping[bytes, bytes]) -> Iterator[Outgoing]:
    """Yield the messages of a batch with changed properties; each is identified by the place of its row."""
    columns = {name: batch.column(name).to_pylist() for name in COLUMNS if name != "ts"}
    places = zip(*(columns[name] for name in PLACE), strict=True)
    contents = zip(*(columns[name] for name in ("exchange", "routing_key", "properties_raw", "body")), strict=True)
    for place, (exchange, key, properties, body) in zip(places, contents, strict=True):
        where, octets = exchange if how.exchange is None else how.exchange, changed[properties or NO_PROPERTIES]
        yield where, key, octets, body or b"", sequence_of(*place[:3]), place


def publish_at_speed(publisher: AmqpPublisher, how: Publishing, rows: Sequence[Outgoing], times: Any) -> None:
    """Publish rows at their due times, which must not decrease."""
    due = [how.began_s + (time_us - how.first_us) / 1e6 / how.speed for time_us in due_us(times)]
    at = 0
    while at < len(rows):
        wait_s = due[at] - time.time()
        if wait_s > 0:
            publisher.drain()  # confirms are not read during the sleep
            time.sleep(min(max(wait_s, SLICE_S), LOOK_S))
            continue
        end = bisect_right(due, time.time(), at)
        publisher.publish(rows[at:end])
        at = end


def due_us(times: Any) -> list[int]:
    """Return the times of rows in microseconds, each at least as late as the one before."""
    found: Any = np.asarray(times.cast(pa.int64()).fill_null(0))
    return [int(time_us) for time_us in np.maximum.accumulate(found)]


def _mapped(key_map: KeyMap) -> Callable[..., Any]:
    """Return a Spark function that maps a column of keys; only the keys pass through Python."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def mapped(keys: Any) -> Any:
        return keys.map({key: key_map(key) for key in keys.unique()})

    mapped.__annotations__ = {"keys": pd.Series, "return": pd.Series}  # Spark evaluates them as types, not as text
    return pandas_udf(mapped, "string")
