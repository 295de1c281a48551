"""`slotmq migrate` from a RabbitMQ, as docs/migrating.md describes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pika
import pytest

from broker.client.address import AmqpAddress
from broker.migrate import link
from broker.migrate.drain import Drain
from broker.migrate.link import MigrationFault
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.conftest import ORACLE_URL
from tests.deadline import wait_until
from tests.differential.oracle import own_oracle
from tests.migrate.killed_migration import migrate_through_kills
from tests.migrate.test_drain import Killer, Stopped

pytestmark = pytest.mark.slow

QUEUES = ("invoices", "audit", "safe", "dead")
MESSAGES = 600
FEW = 5


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerAddress, Any]]:
    """Provide a RabbitMQ and its rabbitmqctl."""
    if ORACLE_URL:
        pytest.skip("starts its own RabbitMQ")
    try:
        with own_oracle(tmp_path_factory.mktemp("source") / "rabbitmq") as started:
            yield started
    except FileNotFoundError as error:
        pytest.skip(str(error))


def fill(address: BrokerAddress) -> None:
    """Declare the topology and publish the messages to be moved."""
    with pika.BlockingConnection(pika.URLParameters(address.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("orders", exchange_type="topic", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("invoices", durable=True, arguments={"x-max-priority": 5})
        channel.queue_declare("safe", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare(
            "audit", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        )
        for queue in QUEUES[:3]:
            channel.queue_bind(queue, "orders", "order.#")
        for number in range(MESSAGES):
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, priority=number % 5)
            channel.basic_publish("orders", f"order.{number}", b"%d" % number, properties)
        method, _, _ = channel.basic_get("audit")
        channel.basic_nack(method.delivery_tag, requeue=False)


def slotmq(process: BrokerProcess, *words: str) -> str:
    """Run a command on the broker and return its output."""
    command = [sys.executable, "-m", "broker", *words, "--data-dir", str(process.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_everything_moves(broker_process: BrokerProcess, tmp_path: Path, rabbitmq: tuple[BrokerAddress, Any]) -> None:
    """Topology and messages move completely: order, keys, headers, priorities and x-death are those of RabbitMQ."""
    here, rabbitmqctl = rabbitmq
    for name in rabbitmqctl("list_queues", "--quiet", "--no-table-headers", "name").split():  # of other tests
        rabbitmqctl("delete_queue", name)
    fill(here)
    rabbitmqctl("export_definitions", str(tmp_path / "definitions.json"))
    there = broker_process.start().address
    words = ["--from", here.url, "--to", there.url, "--definitions", str(tmp_path / "definitions.json")]
    said = slotmq(broker_process, "migrate", *words)
    assert "4 queues" in said
    assert f"queue 'audit' in /: {MESSAGES - 1} messages moved" in said
    assert f"{3 * MESSAGES} messages moved" in said
    with pika.BlockingConnection(pika.URLParameters(there.url)) as connection:
        channel = connection.channel()
        for queue, expected in (
            ("invoices", sorted(range(MESSAGES), key=lambda number: -(number % 5))),
            ("safe", list(range(MESSAGES))),
            ("audit", list(range(1, MESSAGES))),
        ):
            for number in expected:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                assert (method.routing_key, body, properties.delivery_mode) == (f"order.{number}", b"%d" % number, 2)
                assert (properties.headers, properties.priority) == ({"n": number}, number % 5)
            assert channel.basic_get(queue) == (None, None, None)
        _, properties, body = channel.basic_get("dead", auto_ack=True)
        assert (body, properties.headers["x-death"][0]["queue"]) == (b"0", "audit")

    def all_empty() -> bool:  # a quorum queue's count follows after a while
        left = rabbitmqctl("list_queues", "--quiet", "--no-table-headers", "name", "messages").split()
        return sorted(left) == sorted([*QUEUES, *"0000"])

    wait_until(all_empty, "empty queues in RabbitMQ")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_drain_of_rabbitmq_that_stops_at_any_step_loses_and_repeats_nothing(
    kind: str, broker_process: BrokerProcess, rabbitmq: tuple[BrokerAddress, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ returns what was in flight at the end of the connection, and the target drops what it has."""
    monkeypatch.setattr(link, "FLUSH_BYTES", 0)  # a stop finds some of a batch at the target
    here, _ = rabbitmq
    there = broker_process.start().address
    addresses = AmqpAddress.parse(here.url), AmqpAddress.parse(there.url)
    with (
        pika.BlockingConnection(pika.URLParameters(here.url)) as source,
        pika.BlockingConnection(pika.URLParameters(there.url)) as target,
    ):
        for channel in (source.channel(), target.channel()):
            channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
        publisher, consumer = source.channel(), target.channel()
        publisher.confirm_delivery()

        def goes_on() -> bool:
            try:
                asyncio.run(Drain(*addresses, kind, batch_messages=2).run())
            except MigrationFault as fault:  # as if by a stranger, when it was stopped before its first batch
                assert "it has consumers at the source" in str(fault)
                return False
            return True

        stopped = True
        for at in count(1):
            for number in range(FEW):
                publisher.basic_publish("", kind, b"%d" % number, pika.BasicProperties(delivery_mode=2))
            try:
                asyncio.run(Drain(*addresses, kind, batch_messages=2, step_done=Killer(at)).run())
                stopped = False
            except Stopped:
                wait_until(goes_on, "the moment in which RabbitMQ notices the end of the first run")
            found = [consumer.basic_get(kind, auto_ack=True)[2] for _ in range(FEW + 1)]
            assert found == [*(b"%d" % number for number in range(FEW)), None], at
            if not stopped:
                break


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_the_process_may_be_killed_at_any_time(
    broker_process: BrokerProcess, rabbitmq: tuple[BrokerAddress, Any]
) -> None:
    """SIGKILL at random moments while RabbitMQ is the source."""
    migrate_through_kills(rabbitmq[0], broker_process.start().address)
