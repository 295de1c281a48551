"""After a restart exactly the survivors that AMQP promises exist, and nothing that was deleted before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import drain, parameters, publish

Connect = Callable[[BrokerProcess], pika.BlockingConnection]

HOW = ["SIGTERM", "SIGKILL"]


def restart(process: BrokerProcess, how: str) -> None:
    """Stop the broker cleanly or kill it, and start it on the same folder."""
    if how == "SIGTERM":
        assert process.terminate() == 0, process.stderr()
        process.start()
    else:
        process.restart()


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


def exists(connection: pika.BlockingConnection, kind: str, name: str) -> bool:
    """Return whether a queue or exchange exists."""
    channel = connection.channel()
    try:
        if kind == "queue":
            channel.queue_declare(name, passive=True)
        else:
            channel.exchange_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404
        return False
    channel.close()
    return True


@pytest.mark.parametrize("how", HOW)
def test_deleted_things_stay_deleted(started: BrokerProcess, connect: Connect, how: str) -> None:
    """Deleted queues, exchanges and bindings, purged and acked messages do not come back."""
    connection = connect(started)
    channel = connection.channel()
    for number in range(3):
        channel.queue_declare(f"q{number}", durable=True)
        channel.exchange_declare(f"x{number}", "direct", durable=True)
        channel.queue_bind(f"q{number}", f"x{number}", "key")
        publish(channel, f"q{number}", b"1", b"2", b"3", persistent=True)
    channel.queue_bind("q2", "x2", "kept")
    channel.queue_delete("q0")
    channel.exchange_delete("x1")
    channel.queue_purge("q1")
    channel.queue_unbind("q2", "x2", "key")
    tag = channel.basic_get("q2")[0].delivery_tag
    channel.basic_ack(tag)
    channel.queue_declare("auto", durable=True, auto_delete=True)
    consumer = channel.basic_consume("auto", lambda *_: None)
    channel.basic_cancel(consumer)
    # A later confirm proves that earlier work is on disk as well: all share one log.
    publish(channel, "q1", b"last", persistent=True)
    restart(started, how)
    connection = connect(started)
    there = {name: exists(connection, "queue", name) for name in ("q0", "q1", "q2", "auto")}
    assert there == {"q0": False, "q1": True, "q2": True, "auto": False}
    there = {name: exists(connection, "exchange", name) for name in ("x0", "x1", "x2")}
    assert there == {"x0": True, "x1": False, "x2": True}
    channel = connection.channel()
    channel.confirm_delivery()
    assert drain(channel, "q1") == [b"last"]
    assert drain(channel, "q2") == [b"2", b"3"]
    for exchange, key in (("x0", "key"), ("x2", "key"), ("x2", "kept")):
        channel.basic_publish(exchange, key, f"{exchange} {key}".encode())
    assert drain(channel, "q2") == [b"x2 kept"]
    channel.queue_declare("q0", durable=True)
    assert drain(channel, "q0") == []


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
