"""After a restart exactly the survivors that AMQP promises exist, and nothing that was deleted before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import drain, parameters, publish

Connect = Callable[[BrokerProcess], pika.BlockingConnection]

HOW = ["SIGTERM", "SIGKILL"]
MATRIX = list(product([False, True], repeat=3))
"""Queues by durable, exclusive, auto-delete."""


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


def taken(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Fetch everything from a queue: bodies and redelivered flags."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[0].redelivered))
    return found


@pytest.mark.parametrize("how", HOW)
def test_survivors(started: BrokerProcess, connect: Connect, how: str) -> None:
    """Durable queues that are not exclusive survive, with persistent messages and durable bindings; others do not."""
    owner = connect(started)
    channel = owner.channel()
    channel.exchange_declare("durable", "topic", durable=True)
    channel.exchange_declare("transient", "topic")
    queues = {}
    for durable, exclusive, auto_delete in MATRIX:
        queue = f"durable={durable} exclusive={exclusive} auto-delete={auto_delete}"
        queues[queue] = durable and not exclusive
        channel.queue_declare(queue, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        channel.queue_bind(queue, "durable", "#")
        channel.queue_bind(queue, "transient", "#")
        channel.queue_bind(queue, "amq.topic", "a.*")
        publish(channel, queue, b"p1", persistent=True)
        publish(channel, queue, b"t1", persistent=False)
        publish(channel, queue, b"p2", persistent=True)
        publish(channel, queue, b"t2", persistent=False)
    restart(started, how)
    connection = connect(started)
    assert {queue: exists(connection, "queue", queue) for queue in queues} == queues
    assert exists(connection, "exchange", "durable")
    assert not exists(connection, "exchange", "transient")
    channel = connection.channel()
    channel.confirm_delivery()
    survivors = [queue for queue, survives in queues.items() if survives]
    assert {queue: drain(channel, queue) for queue in survivors} == {queue: [b"p1", b"p2"] for queue in survivors}
    channel.basic_publish("durable", "any", b"bound")
    channel.basic_publish("amq.topic", "a.b", b"bound")
    channel.exchange_declare("transient", "topic")
    channel.basic_publish("transient", "any", b"not bound")
    assert {queue: drain(channel, queue) for queue in survivors} == {queue: [b"bound"] * 2 for queue in survivors}


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


@pytest.mark.parametrize("how", HOW)
def test_redelivered_after_restart(started: BrokerProcess, connect: Connect, how: str) -> None:
    """After a clean stop only messages delivered before are redelivered; after a kill, all are."""
    connection = connect(started)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", b"1", b"2", b"3", b"4", persistent=True)
    for _ in range(2):
        channel.basic_get("q")
    restart(started, how)
    connection = connect(started)
    found = taken(connection.channel(), "q")
    assert [body for body, _ in found] == [b"1", b"2", b"3", b"4"]
    assert [redelivered for _, redelivered in found] == ([True] * 4 if how == "SIGKILL" else [True, True, False, False])


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
        restart(started, HOW[round_number % 2])
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
    restart(started, "SIGKILL")
    channel = connect(started).channel()
    channel.confirm_delivery()
    for exchange, key in (("a", ""), ("amq.topic", "t.1"), ("amq.topic", "u.1")):
        channel.basic_publish(exchange, key, exchange.encode())
    assert drain(channel, "q") == [b"synced", b"a", b"amq.topic"]
