"""Properties, bodies, backlogs and bindings between exchanges after restarts; the rest is in test_restart_matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import drain, parameters, publish

Connect = Callable[[BrokerProcess], pika.BlockingConnection]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open connections to the running broker; half-open ones from earlier runs are closed in the end."""
    opened: list[pika.BlockingConnection] = []

    def _connect(process: BrokerProcess) -> pika.BlockingConnection:
        opened.append(pika.BlockingConnection(parameters(process.address)))
        return opened[-1]

    yield _connect
    for connection in opened:
        try:
            connection.close()
        except pika.exceptions.AMQPError:
            assert connection.is_closed


@pytest.fixture
def started(broker_process: BrokerProcess) -> Iterator[BrokerProcess]:
    """Provide a running broker on an empty folder."""
    # pika's blocking connections answer connection.close only while they are in use: not worth the wait.
    broker_process.environment["SLOTMQ_SERVER__DRAIN_TIMEOUT_MS"] = "200"
    yield broker_process.start()
    if broker_process.alive:
        assert not broker_process.errors()


def test_properties_and_bodies_survive(started: BrokerProcess, connect: Connect) -> None:
    """Properties, headers and bodies of every size survive unchanged."""
    connection = connect(started)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "#")
    bodies = [bytes([size % 251]) * size for size in (0, 1, 4096, 131_064, 131_065, 2_000_000)]
    headers = {"text": "väl", "list": [1, "two", None], "table": {"a": {"b": True}}}
    for number, body in enumerate(bodies):
        properties = pika.BasicProperties(delivery_mode=2, headers=headers, message_id=str(number), priority=number)
        channel.basic_publish("amq.topic", f"key.{number}", body, properties)
    started.restart()
    connection = connect(started)
    channel = connection.channel()
    for number, body in enumerate(bodies):
        method, properties, found = channel.basic_get("q", auto_ack=True)
        assert (method.exchange, method.routing_key) == ("amq.topic", f"key.{number}")
        assert found == body
        assert (properties.headers, properties.message_id, properties.priority) == (headers, str(number), number)


def test_many_restarts(started: BrokerProcess, connect: Connect) -> None:
    """Messages published before each of several restarts, clean or not, are all there at the end, in order."""
    expected = []
    for round_number in range(3):
        connection = connect(started)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        bodies = [f"{round_number}.{number}".encode() for number in range(50)]
        publish(channel, "q", *bodies, persistent=True)
        expected += bodies
        # Each round acks a few of the oldest.
        for _ in range(5):
            method, _, body = channel.basic_get("q")
            assert body == expected.pop(0)
            channel.basic_ack(method.delivery_tag)
        publish(channel, "q", b"seal", persistent=True)  # its confirm: the acks before it are on disk
        expected.append(b"seal")
        started.restart(kill=round_number % 2 == 1)
    connection = connect(started)
    assert drain(connection.channel(), "q") == expected


def test_queue_of_many_slots_survives(started: BrokerProcess, connect: Connect) -> None:
    """A backlog of several thousand messages survives in order, without the settled ones."""
    connection = connect(started)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    properties = pika.BasicProperties(delivery_mode=2)
    total = 4500
    for number in range(total):
        channel.basic_publish("", "q", str(number).encode(), properties)
    publish(channel, "q", b"end", persistent=True)
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(2500)]
    settled = tags[::3]
    for tag in settled:
        channel.basic_ack(tag)
    publish(channel, "q", b"end", persistent=True)
    started.restart()
    connection = connect(started)
    gone = {tag - 1 for tag in settled}
    expected = [str(number).encode() for number in range(total) if number not in gone] + [b"end", b"end"]
    assert drain(connection.channel(), "q") == expected


def test_bindings_between_exchanges_survive_a_kill(started: BrokerProcess, connect: Connect) -> None:
    """Bindings between durable exchanges survive, and removed ones stay removed."""
    channel = connect(started).channel()
    for exchange in ("a", "b", "c"):
        channel.exchange_declare(exchange, "fanout", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "c")
    channel.exchange_bind("b", "a")
    channel.exchange_bind("c", "b")
    channel.exchange_bind("c", "amq.topic", "t.#")
    channel.exchange_bind("c", "amq.topic", "u.#")
    channel.exchange_unbind("c", "amq.topic", "u.#")
    # A confirmed publish is on disk, and so is everything before it: all share one log.
    publish(channel, "q", b"synced", persistent=True)
    started.restart()
    channel = connect(started).channel()
    channel.confirm_delivery()
    for exchange, key in (("a", ""), ("amq.topic", "t.1"), ("amq.topic", "u.1")):
        channel.basic_publish(exchange, key, exchange.encode())
    assert drain(channel, "q") == [b"synced", b"a", b"amq.topic"]
