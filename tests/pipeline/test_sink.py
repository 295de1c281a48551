"""The sink `slotmq` in Spark: frames and streams are published, and repeated batches count once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broker.pipeline.faults import fault_in
from broker.pipeline.sink.publishing import BadRecordLog
from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS, ddl_of
from broker.testing import Broker

PROPERTIES = (
    b"\0\0",
    b"\x30\0\0\0\0\0\x02",
    b"\x90\x00\x01t\x02",
)  # none, an empty table and a mode, a type and a mode
ROWS = 600
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Provide a broker with the durable queue q, to which exchange x routes every key except `lost`."""
    with Broker() as running, pika.BlockingConnection(pika.URLParameters(running.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("x", "topic", durable=True)
        channel.queue_bind("q", "x", "found.#")
        yield running


def table() -> Any:
    """Return rows of six slots; every fiftieth is unroutable."""
    rows = [
        {
            "seal": 1 + row // 100,
            "slot": row // 100 * 100 + 7,
            "offset": row + 7,
            "exchange": "x",
            "routing_key": f"found.{row % 7}" if row % 50 else "lost",
            "properties_raw": PROPERTIES[row % 3],
            "body": b"%d" % row + b" " * 2000,  # long enough for Spark to pass on its rows
        }
        for row in range(ROWS)
    ]
    return pa.Table.from_pylist(rows, ARROW_SCHEMA)


FOUND = Counter(row for row in range(ROWS) if row % 50)


def bodies(broker: Broker) -> Counter[int]:
    """Return how often each row is in q."""
    broker.wait_idle()
    return Counter(int(message.body) for message in broker.queue("q").messages)


def failing(frame: DataFrame, url: str) -> DataFrame:
    """Return the frame, whose rows end their task when some of them are in the queue."""

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        import pika

        for number, batch in enumerate(batches):
            if number < 4:
                yield batch
                continue
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                channel = connection.channel()
                end = time.monotonic() + 30
                while not channel.queue_declare("q", passive=True).method.message_count and time.monotonic() < end:
                    time.sleep(0.01)
            raise RuntimeError("gone")

    return frame.mapInArrow(fail, frame.schema)


def test_a_frame_is_published_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A job that fails half way and runs again leaves each row once, byte for byte; unroutable rows are kept."""
    frame = spark.createDataFrame(table()).coalesce(1)
    options = {"url": broker.url, "producer": "job", "badRecords": str(tmp_path), "window": "50"}
    rows_at_once = spark.conf.get(BATCH_ROWS)
    spark.conf.set(BATCH_ROWS, 100)
    try:
        with pytest.raises(Exception, match="gone"):
            failing(frame, broker.url).write.format("slotmq").options(**options).mode("append").save()
    finally:
        spark.conf.set(BATCH_ROWS, rows_at_once)
    before = bodies(broker)
    assert before and set(before.values()) == {1} and before != FOUND
    assert BadRecordLog(tmp_path).files() == []
    frame.write.format("slotmq").options(**options).mode("append").save()
    assert bodies(broker) == FOUND
    for message in broker.queue("q").messages:
        assert message.header[12:] == PROPERTIES[int(message.body) % 3]
    lost = spark.read.parquet(*BadRecordLog(tmp_path).files())
    assert {(int(row.body), row.reason) for row in lost.collect()} == {(row, "NO_ROUTE") for row in range(0, ROWS, 50)}


def test_a_stream_is_published_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A stream whose last batch runs again, because its commit was not recorded, leaves each row once."""
    source, checkpoint, bad = (tmp_path / name for name in ("source", "checkpoint", "bad"))
    source.mkdir()
    for part in range(3):
        pq.write_table(table().slice(part * 200, 200), source / f"{part}.parquet")

    def run() -> None:
        stream = (
            spark.readStream.schema(ddl_of(ARROW_SCHEMA, COLUMNS)).option("maxFilesPerTrigger", 2).parquet(str(source))
        )
        writer = stream.writeStream.format("slotmq").trigger(availableNow=True)
        options = {"url": broker.url, "producer": "s", "badRecords": str(bad), "checkpointLocation": str(checkpoint)}
        writer.options(**options).start().awaitTermination()

    run()
    assert bodies(broker) == FOUND
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert bodies(broker) == FOUND
    assert len(spark.read.parquet(*BadRecordLog(bad).files()).collect()) == ROWS // 50


MINUTES = 600  # for each file
KILLED = """
import os, sys
from pathlib import Path
from broker.pipeline import session
from tests.pipeline.test_sink import count_minutes, killing

url, source, checkpoint = sys.argv[1:]
conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1", "%s": "100"}
spark = session(master="local[2]", conf=conf)
count_minutes(spark, url, Path(source), Path(checkpoint), killing(url, os.getpgrp()))
"""


def count_minutes(spark: SparkSession, url: str, source: Path, checkpoint: Path, task: Any = None) -> None:
    """Publish the number of rows of each minute, once it is over, through a task of the test."""
    stream = spark.readStream.schema("ts timestamp").option("maxFilesPerTrigger", 1).parquet(str(source))
    counts = stream.withWatermark("ts", "0 seconds").groupBy(sf.window("ts", "1 minute")).count()
    minute = sf.expr("unix_seconds(window.start) div 60").alias("minute")
    body = sf.rpad(sf.concat_ws(" ", minute, "count"), 2000, " ")  # long enough for Spark to pass on its rows
    frame = counts.select(minute, body.alias("body"))
    if task is not None:
        frame = frame.mapInArrow(task, frame.schema)
    options = {"url": url, "exchange": "", "routingKey": "q", "producer": "counts", "sequenceColumn": "minute"}
    writer = frame.writeStream.format("slotmq").trigger(availableNow=True)
    writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()


def killing(url: str, group: int) -> Any:
    """Return a task that kills a group of processes when some minutes of the second file are in the queue."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import signal
        import time

        import pika

        for number, batch in enumerate(batches):
            if number == 4 and batch.column("minute")[0].as_py() >= MINUTES:
                with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                    channel = connection.channel()
                    end = time.monotonic() + 150  # Spark may have to start the other worker beside other work
                    while channel.queue_declare("q", passive=True).method.message_count < MINUTES:
                        assert time.monotonic() < end
                        time.sleep(0.01)
                os.killpg(group, signal.SIGKILL)
            yield batch

    return task


@pytest.mark.torture
def test_an_aggregate_is_published_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A counting stream is killed in the middle of a batch, and each count is in the queue once.

    The next run sends the batch again, and the broker drops the duplicates by the numbers of the user's own column.
    """
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for part in range(2):
        minutes = pa.array([60_000_000 * (part * MINUTES + row // 2) for row in range(2 * MINUTES)])
        pq.write_table(pa.table({"ts": minutes.cast(pa.timestamp("us", "UTC"))}), source / f"{part}.parquet")
    command = [sys.executable, "-c", KILLED % BATCH_ROWS, broker.url, str(source), str(checkpoint)]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[2], timeout=220, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL
    over = 2 * MINUTES - 1  # no later row shows that the last minute is over
    assert MINUTES <= len(counted(broker)) < over
    count_minutes(spark, broker.url, source, checkpoint)
    assert counted(broker) == [(minute, 2) for minute in range(over)]


def counted(broker: Broker) -> list[tuple[int, ...]]:
    """Return the minutes and counts in q, sorted."""
    broker.wait_idle()
    return sorted(tuple(map(int, message.body.split())) for message in broker.queue("q").messages)


def test_what_cannot_be_published_is_one_line(spark: SparkSession, broker: Broker) -> None:
    """A wrong password, and a frame without a body, are one line each."""
    frame = spark.createDataFrame(table())
    refused = [(frame.drop("body"), broker.url), (frame.limit(1), broker.url.replace("guest:guest", "guest:secret"))]
    texts = []
    for rows, url in refused:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds of Spark's
            rows.write.format("slotmq").option("url", url).mode("append").save()
        texts.append(str(fault_in(caught.value)))
    assert texts[0] == "there is no column 'body'"
    assert "ACCESS_REFUSED" in texts[1]
    assert "secret" not in texts[1]


RETRY = """
import sys
from pathlib import Path
from broker.pipeline import session
from tests.pipeline.test_sink import table

url, mark = sys.argv[1:]

def once(batches):
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        try:
            Path(mark).open("x").close()
        except FileExistsError:
            pass
        else:
            raise RuntimeError("the first attempt fails")
        yield batch.slice(half)

spark = session(master="local[2,2]", conf={"spark.driver.memory": "1g"})
frame = spark.createDataFrame(table()).coalesce(1)
rows = frame.mapInArrow(once, frame.schema)
rows.write.format("slotmq").options(url=url, producer="job", mandatory="false", window="20").mode("append").save()
spark.stop()
"""


@pytest.mark.torture
def test_a_task_that_is_tried_again_publishes_nothing_twice(broker: Broker, tmp_path: Path) -> None:
    """Spark retries a task that had published half of its rows; each row is in the queue once."""
    mark = tmp_path / "failed"
    command = [sys.executable, "-c", RETRY, broker.url, str(mark)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=280)
    assert mark.exists()
    assert bodies(broker) == FOUND
