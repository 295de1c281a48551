"""The source in Spark: every published message is read once, from a folder and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql import DataFrame, SparkSession

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.slot_folders import SlotFolder, numbered

HTTP = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a broker that serves its slots over HTTP too."""
    process = BrokerProcess(tmp_path / "data", environment=HTTP).start()
    yield process
    process.kill()


def publish(channel: BlockingChannel, numbers: range) -> list[dict[str, Any]]:
    """Publish a message for each number, and return its expected row."""
    expected = []
    for number in numbers:
        key, body, mode = f"flight.{number % 3}.{number}", b"\x00body %d" % number, 1 + number % 2
        properties = pika.BasicProperties(
            content_type="text/plain", headers={"n": number, "late": number % 2 == 0}, delivery_mode=mode,
            priority=200, message_id=str(number), timestamp=1_700_000_000 + number, type="ü",
        )  # fmt: skip
        channel.basic_publish("news", key, body, properties, mandatory=True)
        expected.append(
            {
                "vhost": "/", "slot": 1, "offset": number, "exchange": "news", "routing_key": key,
                "redelivered": False, "priority": 200, "delivery_mode": mode, "content_type": "text/plain",
                "content_encoding": None, "message_id": str(number), "type": "ü", "app_id": None,
                "app_s": 1_700_000_000 + number,
                "headers": f'{{"n": {number}, "late": {"true" if number % 2 == 0 else "false"}}}', "body": body,
            }
        )  # fmt: skip
    return expected


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the compared columns of the rows by message id."""
    found = frame.selectExpr("*", "unix_timestamp(app_ts) AS app_s").orderBy("offset").collect()
    return [{name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.asDict().items()} for row in found]


def compared(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Return whether the rows are as expected, with none missing and none added."""
    return [{name: row[name] for name in expected[0]} for row in found] == expected


def test_what_was_published_is_what_is_read(spark: SparkSession, broker: BrokerProcess) -> None:
    """A queue by a snapshot, a tap by its slots; from the folder and over HTTP; every column, byte by byte."""
    with pika.BlockingConnection(pika.URLParameters(broker.address.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("news", "topic")
        channel.queue_declare("late")
        channel.queue_bind("late", "news", "#")
        ask(broker.folder, "tap_add", exchange="news", pattern="flight.#", name="flights")
        channel.confirm_delivery()
        expected = publish(channel, range(1, 121))

    frame = spark.read.format("slotmq").option("path", broker.folder).option("queue", "late").load()
    found = rows(frame)
    assert compared(found, expected)
    assert {(row["queue"], row["seal"]) for row in found} == {("late", 0)}

    url = broker.http_url()
    remote = spark.read.format("slotmq").option("url", url).option("queue", "late").load()
    assert rows(remote) == found

    tap = spark.read.format("slotmq").option("tap", "flights")
    by_path = rows(tap.option("sealNow", "true").load(str(broker.folder)))
    assert compared(by_path, expected)
    assert {(row["queue"], row["seal"]) for row in by_path} == {("flights", 1)}
    assert rows(spark.read.format("slotmq").option("tap", "flights").option("url", url).load()) == by_path

    [slot] = spark.read.format("slotmq-slots").option("url", url).load().collect()
    assert (slot["seal"], slot["first"], slot["end"], slot["count"]) == (1, 1, 121, 120)
    assert slot["path"] == url.replace("guest:guest@", "") + "/v1/slots/1"

    topic = spark.read.format("slotmq").option("path", broker.folder).option("topic", "*.2.#").load()
    assert {row["offset"] for row in topic.collect()} == {number for number in range(1, 121) if number % 3 == 2}

    given = f"USING slotmq OPTIONS (path '{broker.folder}', tap 'flights')"
    spark.sql(f"CREATE TEMPORARY VIEW flights {given}")
    assert spark.sql("SELECT count(*) FROM flights").collect()[0][0] == 120
    spark.sql(f"CREATE TABLE made (offset BIGINT) {given}")  # Spark does not ask the source when the columns are given
    for asked in (f"CREATE TABLE refused {given}", "SELECT * FROM made"):
        with pytest.raises(Exception, match=r"CREATE TEMPORARY VIEW v USING slotmq OPTIONS \(\.\.\.\) can"):
            spark.sql(asked).collect()
    spark.sql("DROP TABLE made")
    spark.sql("DROP VIEW flights")

    ask(broker.folder, "add_user", name="ann", password="secret", tags=[])
    for options, said in [
        ({"queue": "nix"}, "no queue 'nix' in vhost '/'"),
        ({"queue": "flights"}, "there is a tap of that name"),
        ({"tap": "nix"}, "there is no tap 'nix'"),
        ({"url": broker.http_url("ann:secret"), "queue": "late"}, "refuses user 'ann'"),
        ({"url": broker.http_url("ann:wrong"), "queue": "late"}, "refuses user 'ann'"),
        ({"quue": "late"}, "there is no option 'quue'; did you mean queue?"),
    ]:
        where = {} if "url" in options else {"path": str(broker.folder)}
        with pytest.raises(Exception, match="Python") as refused:
            spark.read.format("slotmq").options(**where, **options).load().count()
        first = str(refused.value).splitlines()[0]
        assert said in first
        assert "secret" not in str(refused.value)


def test_ranges_plan_fewer_tasks_and_a_frame_keeps_no_filter(spark: SparkSession, tmp_path: Path) -> None:
    """Slots outside `from` and `to` get no tasks; Spark applies filters, and a frame keeps none for its next query."""
    folder = SlotFolder(tmp_path)
    for number in range(8):
        folder.add_slot("audit", numbered(50, start=50 * number))

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("slotmq").options(
            maxPartitionBytes="1", columns="offset,ts,slot,routing_key,queue,seal"
        )
        return reader.options(**options).load(str(tmp_path))

    plain = load()
    assert plain.rdd.getNumPartitions() == 8
    assert [row["offset"] for row in plain.collect()] == list(range(1, 401))
    for options, tasks, wanted in [
        ({"from": "id:121", "to": "id:181"}, 2, range(121, 181)),
        ({"from": "seal:2", "to": "seal:4"}, 2, range(51, 151)),
        ({"to": "2023-11-14T22:13:21Z"}, 2, range(1, 100)),
        ({"topic": "#.3"}, 8, range(4, 401, 10)),
    ]:
        chosen = load(**options)
        assert chosen.rdd.getNumPartitions() == tasks, options
        assert [row["offset"] for row in chosen.collect()] == list(wanted), options
    with pytest.raises(Exception, match="there is no option 'pushfilters'"):
        load(pushFilters="true").count()
    # A frame that is used again, with other filters, in other queries and twice in one, keeps none of them.
    for where in ("offset > 120 AND offset <= 180", "routing_key = 'k.3'", "seal IN (2, 3)"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        assert 0 < plain.where(where).count() < 400
        assert plain.count() == 400
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert plain.where("offset < 11").union(plain).count() == 410

    folder.damage(2, b"77...")
    with pytest.raises(Exception, match="slot 2 of tap 'audit' in vhost '/': 1 of 50 rows cannot be read") as refused:
        plain.count()
    assert "SlotDamaged" in str(refused.value).splitlines()[1]  # after Spark's own line about the worker's message
    assert load(failOnBadRows="false").count() == 399


class Seen:
    """The message ids of a stream, batch by batch."""

    def __init__(self, spark: SparkSession, path: Path, checkpoint: Path) -> None:
        self._spark = spark
        self._path = path
        self._checkpoint = checkpoint
        self.batches: dict[int, list[int]] = {}

    def run(self, **options: str) -> list[list[int]]:
        """Run a stream to the end of the available data, and return the content of each batch."""
        self.batches.clear()
        frame = self._spark.readStream.format("slotmq").options(columns="offset", **options).load(str(self._path))
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return list(self.batches.values())

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = sorted(row["offset"] for row in frame.collect())


def test_a_stream_brings_every_message_once(spark: SparkSession, tmp_path: Path) -> None:
    """Batches keep the limits, over restarts, until a gap stops the stream; with an option it continues."""
    folder = SlotFolder(tmp_path / "data")
    for number in range(5):
        folder.add_slot("audit", numbered(10, start=10 * number))
    seen = Seen(spark, folder.path, tmp_path / "checkpoint")
    assert seen.run(maxSlotsPerTrigger="2") == [[*range(1, 21)], [*range(21, 41)], [*range(41, 51)]]
    folder.add_slot("audit", numbered(10))
    assert seen.run(maxSlotsPerTrigger="2") == [[*range(51, 61)]]

    gone = folder.add_slot("audit", numbered(10))
    folder.add_slot("audit", numbered(10))
    folder.add_gap(gone, "bytes")
    with pytest.raises(Exception, match="slot 7 of tap 'audit' in vhost '/' with 10 messages was lost") as refused:
        seen.run()
    assert "SlotGap" in str(refused.value).splitlines()[0]
    assert seen.run(failOnGap="false") == [[*range(71, 81)]]

    other = SlotFolder(tmp_path / "other", store="00" * 16)
    other.add_slot("audit", numbered(10))
    with pytest.raises(Exception, match=f"the checkpoint belongs to store {folder.store}"):
        Seen(spark, other.path, tmp_path / "checkpoint").run()
