"""RabbitMQ's shovel, as docs/from-rabbitmq.md describes it: definitions first, then the messages of each queue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pika
import pytest

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import wait_until
from tests.differential.oracle import own_oracle

pytestmark = pytest.mark.slow

QUEUES = ("invoices", "audit")
MESSAGES = 2_000


def fill(address: BrokerAddress) -> None:
    """Declare the topology and publish the messages to be moved."""
    with pika.BlockingConnection(pika.URLParameters(address.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("orders", exchange_type="topic", durable=True)
        channel.queue_declare("invoices", durable=True, arguments={"x-max-priority": 5})
        channel.queue_bind("invoices", "orders", "order.#")
        channel.queue_declare("audit", durable=True)
        channel.queue_bind("audit", "orders", "#")
        for number in range(MESSAGES):
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, priority=number % 5)
            channel.basic_publish("orders", f"order.{number}", b"%d" % number, properties)


def slotmq(process: BrokerProcess, *words: str) -> str:
    """Run a command on the broker and return its output."""
    command = [sys.executable, "-m", "broker", *words, "--data-dir", str(process.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_everything_moves(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """Users, topology and messages move completely, by a user with only the rights that the page names."""
    definitions = tmp_path / "definitions.json"
    broker_process.start()
    try:
        with own_oracle(tmp_path / "rabbitmq", "rabbitmq_shovel") as (address, rabbitmqctl):
            fill(address)
            rabbitmqctl("add_user", "mover", "secret")
            rabbitmqctl("set_permissions", "mover", "^(invoices|audit)$", "^amq\\.default$", "^$")
            rabbitmqctl("export_definitions", str(definitions))
            assert "2 queues" in slotmq(broker_process, "definitions", "import", str(definitions))
            there = broker_process.address
            for queue in QUEUES:
                shovel = {
                    "src-protocol": "amqp091",
                    "src-uri": "amqp://",
                    "src-queue": queue,
                    "dest-protocol": "amqp091",
                    "dest-uri": f"amqp://mover:secret@{there.host}:{there.port}/%2F",
                    "dest-queue": queue,
                    "ack-mode": "on-confirm",
                    "src-delete-after": "queue-length",
                }
                rabbitmqctl("set_parameter", "shovel", f"move-{queue}", json.dumps(shovel))
            with pika.BlockingConnection(pika.URLParameters(there.url)) as connection:
                channel = connection.channel()

                def moved() -> bool:
                    counts = [channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES]
                    return counts == [MESSAGES, MESSAGES]

                wait_until(moved, "all messages")
                for queue in QUEUES:
                    seen = []
                    for _ in range(MESSAGES):
                        _, properties, body = channel.basic_get(queue, auto_ack=True)
                        number = properties.headers["n"]
                        assert (body, properties.delivery_mode) == (b"%d" % number, 2)
                        assert properties.priority == number % 5
                        seen.append(number)
                    if queue == "invoices":
                        assert seen == sorted(seen, key=lambda number: -(number % 5))
                    else:
                        assert seen == list(range(MESSAGES))

            def empty() -> bool:
                left = rabbitmqctl("list_queues", "--quiet", "--no-table-headers", "name", "messages")
                return sorted(left.split()) == ["0", "0", "audit", "invoices"]

            wait_until(empty, "the acknowledgements of the shovel")
    except FileNotFoundError as error:
        pytest.skip(str(error))
