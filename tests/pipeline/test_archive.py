"""Archives with Spark: each message is stored once, its slot is released afterwards, unreadable rows are reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.cli.control_client import ask
from broker.pipeline.faults import BAD_RECORDS, GAP, OK, JobFailed
from broker.pipeline.job import Progress, Summary
from broker.pipeline.jobs.archive import ArchiveOptions, run_archive
from broker.pipeline.lake.lake import Lake
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.delta_log import messages_of, orphans_of
from tests.slot_folders import START_MS, make_slots, numbered

PROJECT = Path(__file__).parents[2]
DRIVER_DEADLINE_S = 200.0
SLOTS = 4
ROWS = 50


def archive(spark: SparkSession, lake: Path | str, **options: Any) -> Summary:
    """Run an archive to its end."""
    return run_archive(ArchiveOptions(lambda: spark, lake, **options), Progress("archive", quiet=True))


def ids(frame: DataFrame) -> list[int]:
    """Return the message ids of rows, sorted."""
    return sorted(row["offset"] for row in frame.select("offset").collect())


def has_rows(path: Path, count: int) -> bool:
    """Return whether a lake has this many messages."""
    return len(messages_of(path)) == count


def orphans(path: Path) -> set[str]:
    """Return the files of a lake that no log entry names."""
    return orphans_of(path / "messages") | orphans_of(path / "bad")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a broker that seals after a short time."""
    process = BrokerProcess(tmp_path / "data", environment={"SLOTMQ_TAPS__WINDOW_MS": "200"}).start()
    yield process
    process.kill()


def slot_files(broker: BrokerProcess) -> list[Path]:
    """Return the existing slot files."""
    return list((broker.folder / "slots").glob("*.slot"))


def publish(broker: BrokerProcess, numbers: range) -> list[tuple[int, str, bytes, int, str]]:
    """Publish messages of every kind, and return their expected rows: id, key, body, delivery mode, headers."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url))
    channel = connection.channel()
    channel.confirm_delivery()
    sent = []
    for number in numbers:
        key, body, mode = f"flight.{number % 7}", os.urandom(number % 90), 1 + number % 2
        properties = pika.BasicProperties(headers={"n": number}, delivery_mode=mode)
        channel.basic_publish("news", key, body, properties)
        sent.append((number, key, body, mode, f'{{"n": {number}}}'))
    connection.close()
    return sent


def test_a_tap_is_archived_once_then_followed_and_released(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """All columns arrive; a second run adds nothing; a following run takes new messages, and releases them if idle."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url))
    connection.channel().exchange_declare("news", "topic", durable=True)
    connection.close()
    ask(broker.folder, "tap_add", exchange="news", pattern="flight.#", name="flights", cursors=["archive"])
    lake, path = tmp_path / "lake", str(broker.folder)
    sent = publish(broker, range(1, 101))

    first = archive(spark, lake, path=path)
    assert (first.code, first.values["rows"], first.values["bad"], first.values["lag_slots"]) == (OK, 100, 0, 0)
    wait_until(lambda: not slot_files(broker), "the archived slots are released")

    again = archive(spark, lake, path=path)
    assert (again.code, again.values["rows"], again.values["batches"]) == (OK, 0, 0)

    stop, fed = threading.Event(), list[str]()

    def feed() -> None:
        """Publish, wait for the lake and the release, publish again, and end the archive."""
        try:
            for numbers in (range(101, 151), range(151, 161)):
                sent.extend(publish(broker, numbers))
                wait_until(partial(has_rows, lake, len(sent)), "the new messages are in the lake")
                wait_until(lambda: not slot_files(broker), "the last slot of an idle stream is released")
                fed.append("all")
        finally:
            stop.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    followed = archive(spark, lake, path=path, follow=True, every_s=0.2, stop=stop)
    feeder.join()
    assert (followed.code, followed.values["rows"], fed) == (OK, 60, ["all", "all"])

    found = Lake(lake).messages(spark).orderBy("offset").collect()
    rows = [(row.offset, row.routing_key, bytes(row.body), row.delivery_mode, row.headers) for row in found]
    assert rows == sent
    assert {(row.vhost, row.queue, row.exchange, row.redelivered) for row in found} == {("/", "flights", "news", False)}
    assert not orphans(lake)


def test_what_cannot_be_read_or_had_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """A bad row goes to its table, too many of them and a gap are refused, and a gap may be allowed."""
    folder = make_slots(tmp_path / "store", [list(numbered(ROWS, start=ROWS * at)) for at in range(SLOTS)])
    folder.damage(2)
    lake, path = tmp_path / "lake", str(folder.path)
    with pytest.raises(
        JobFailed, match=r"^1 of 200 messages cannot be read, more than 0: none of the batch was archived$"
    ):
        archive(spark, tmp_path / "strict", path=path, max_bad="0")
    assert not messages_of(tmp_path / "strict") and not orphans(tmp_path / "strict")

    first = archive(spark, lake, path=path, taps=("audit",))
    assert (first.code, first.values["rows"], first.values["bad"]) == (BAD_RECORDS, SLOTS * ROWS - 1, 1)
    [bad] = Lake(lake).bad(spark).collect()
    assert (bad.queue, bad.seal, bad.reason) == ("audit", 2, "its checksum is wrong")
    assert ROWS < bad.offset <= 2 * ROWS and b"...." in bytes(bad.raw)
    whole = [n for n in range(1, SLOTS * ROWS + 1) if n != bad.offset]
    assert ids(Lake(lake).messages(spark)) == whole

    lost = folder.add_slot("audit", numbered(ROWS))
    folder.add_gap(lost)
    last = folder.add_slot("audit", numbered(ROWS))
    with pytest.raises(
        JobFailed, match=r"^1 slot with 50 messages had disappeared .*: slot 5 of tap .audit. \(50 messages\);"
    ) as gap:
        archive(spark, lake, path=path, taps=("audit",))
    assert gap.value.code == GAP
    allowed = archive(spark, lake, path=path, taps=("audit",), allow_gap=True)
    assert (allowed.code, allowed.values["rows"], allowed.values["gaps"]) == (OK, ROWS, 1)
    assert ids(Lake(lake).messages(spark)) == [*whole, *range(last.first, last.end)]

    since = Lake(lake).messages(spark, since="2023-11-14T22:13:21Z", until="2023-11-14T22:13:21.500Z")
    assert ids(since) == [n for n in whole if 1000 <= n * 10 < 1500]
    assert START_MS == 1_700_000_000_000  # 22:13:20


def killed(point: str, batch: int, store: Path, lake: Path) -> None:
    """Run the driver until it is killed at a point."""
    command = [sys.executable, "-m", "tests.pipeline.archive_driver", str(store), str(lake), point, str(batch)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DRIVER_DEADLINE_S, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
