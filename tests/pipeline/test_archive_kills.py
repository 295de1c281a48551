"""Exactly once under real kills: of the driver at each of its points, of the broker while it seals, and of both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pika
import pytest
from pyspark.sql import SparkSession

from broker.cli.control_client import ask
from broker.pipeline.faults import BAD_RECORDS, OK
from broker.pipeline.lake.lake import Lake
from tests.broker_process import PROJECT, BrokerProcess
from tests.deadline import wait_until
from tests.delta_log import messages_of
from tests.pipeline.test_archive import ROWS, archive, has_rows, killed, orphans, slot_files
from tests.slot_folders import make_slots, numbered

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]

SLOTS = 4
ROUNDS = 6
START_DEADLINE_S = 120.0
SOON = {"SLOTMQ_TAPS__WINDOW_MS": "100", "SLOTMQ_TAPS__WINDOW_MESSAGES": "100"}


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("point", ["task", "files", "entry"])
def test_a_driver_killed_at_a_point_goes_on_with_each_message_once(
    spark: SparkSession, tmp_path: Path, point: str, batch: int
) -> None:
    """No row is doubled or missing, the bad row is in its table once, and no file exists that the log does not name."""
    folder = make_slots(tmp_path / "store", [list(numbered(ROWS, start=ROWS * at)) for at in range(SLOTS)])
    folder.damage(batch + 1)
    lake = tmp_path / "lake"
    killed(point, batch, folder.path, lake)
    done = batch + (point == "entry")
    assert len(messages_of(lake)) == done * ROWS - (done > batch)
    rest = archive(spark, lake, path=str(folder.path), batch_bytes=1)
    assert rest.code == (OK if point == "entry" else BAD_RECORDS)
    assert rest.values["batches"] == SLOTS - batch - (point == "entry")
    [bad] = Lake(lake).bad(spark).collect()
    assert messages_of(lake) == [n for n in range(1, SLOTS * ROWS + 1) if n != bad.offset]
    assert not orphans(lake)


class Publisher(threading.Thread):
    """Publishes numbered messages with confirms, through all deaths of the broker; no number twice."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.broker = broker
        self.confirmed: set[int] = set()
        self.sent = 0
        self.stop = threading.Event()

    def has_sent(self, count: int) -> bool:
        """Return whether the publisher has tried this many messages."""
        return self.sent >= count

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                connection = pika.BlockingConnection(pika.URLParameters(self.broker.address.url))
                channel = connection.channel()
                channel.confirm_delivery()
                while not self.stop.is_set():
                    self.sent += 1
                    number = self.sent
                    properties = pika.BasicProperties(delivery_mode=2)
                    channel.basic_publish("news", f"k.{number % 5}", b"%d" % number, properties)
                    self.confirmed.add(number)
                connection.close()
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(0.05)  # the broker is down at the moment


class Follower:
    """A following archive in a separate process."""

    def __init__(self, store: Path, lake: Path) -> None:
        command = [sys.executable, "-m", "tests.pipeline.archive_driver", str(store), str(lake), "follow", "0"]
        self.process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.pids = [int(pid) for pid in self.process.stdout.readline().split()]

    def end(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait(START_DEADLINE_S)

    def kill(self) -> None:
        """End the driver and its JVM by SIGKILL."""
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a broker that seals all the time."""
    process = BrokerProcess(tmp_path / "data", environment=SOON).start()
    yield process
    process.kill()


def bodies(lake: Path) -> Counter[int]:
    """Return how often each number is in a lake's files."""
    return Counter(map(int, messages_of(lake, "body")))


def test_broker_and_driver_killed_in_turn_lose_and_double_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """If the broker dies while sealing, the archive while following, or both, each confirmed message is there once."""
    random, lake = Random(5), tmp_path / "lake"
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url))
    connection.channel().exchange_declare("news", "topic", durable=True)
    connection.close()
    ask(broker.folder, "tap_add", exchange="news", pattern="#", name="all", cursors=["archive"])
    publisher = Publisher(broker)
    publisher.start()
    follower = Follower(broker.folder, lake)
    try:
        for turn in range(ROUNDS):
            enough = publisher.sent + random.randrange(100, 400)
            wait_until(partial(publisher.has_sent, enough), "the publisher goes on", START_DEADLINE_S)
            if turn % 3 != 0:
                follower.kill()
            if turn % 3 != 1:
                broker.restart()
            if turn % 3 != 0:
                follower = Follower(broker.folder, lake)
            seen = len(messages_of(lake)) if lake.exists() else 0
            wait_until(partial(grown, lake, seen), "the archive goes on", START_DEADLINE_S)
        assert follower.end() == 0
    finally:
        publisher.stop.set()
        publisher.join()
        follower.kill()
    archive(spark, lake, path=str(broker.folder))
    found = bodies(lake)
    assert set(found.values()) == {1}
    assert publisher.confirmed <= found.keys() <= set(range(1, publisher.sent + 1))
    assert has_rows(lake, len(found)) and not orphans(lake)
    wait_until(lambda: not slot_files(broker), "all slots are released")


def grown(lake: Path, seen: int) -> bool:
    """Return whether a lake has more messages than before."""
    return (lake / "messages" / "_delta_log").exists() and len(messages_of(lake)) > seen
