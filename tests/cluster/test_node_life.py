"""Failures of a node and of the database, as the node's clients see them."""

from __future__ import annotations

import signal
from pathlib import Path

import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAuthenticationError,
)

from tests.broker_process import BrokerProcess
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, wait_until
from tools.postgres_server import PostgresServer

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def members(postgres: PostgresServer, nodes: Nodes) -> int:
    """Return how many nodes are members."""
    return int(postgres.sql(f'SELECT count(*) FROM "{nodes.schema}".member'))


def received(nodes: Nodes, name: str, queue: str, count: int) -> list[tuple[bytes, bool]]:
    """Return body and redelivered of this many messages that a new consumer of a node gets."""
    channel = nodes.channel(name)
    found: list[tuple[bytes, bool]] = []
    for method, _properties, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
        assert method is not None, f"{len(found)} of {count} messages came"
        found.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_an_orderly_stop_returns_everything(nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """Messages that a stopped node held are delivered elsewhere; those it had delivered are marked."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(10):
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
    consumer = nodes.channel("a")
    consumer.basic_qos(prefetch_count=3)
    assert next(consumer.consume("q", inactivity_timeout=DEADLINE_S))[2] == b"0"
    assert nodes.by_name["a"].terminate() == 0
    found = received(nodes, "b", "q", 10)
    assert sorted(body for body, _ in found) == [b"%d" % number for number in range(10)]
    assert (b"0", True) in found
    assert members(shared_postgres, nodes) == 1


def test_the_messages_of_a_killed_node_are_delivered_elsewhere(nodes: Nodes) -> None:
    """kill -9: confirmed messages are not lost, delivered ones are marked as redelivered."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(10):
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
    assert next(nodes.channel("a").consume("q", inactivity_timeout=DEADLINE_S))[2] == b"0"
    nodes.by_name["a"].kill()
    found = received(nodes, "b", "q", 10)
    assert sorted(body for body, _ in found) == [b"%d" % number for number in range(10)]
    assert (b"0", True) in found


def test_a_frozen_node_wakes_up_as_another_member(nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """A node that was frozen for longer than its lease closes its clients with 320, and joins again."""
    connection = nodes.connect("a")
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"m", PERSISTENT)
    consumer = nodes.connect("a").channel()
    assert next(consumer.consume("q", inactivity_timeout=DEADLINE_S))[2] == b"m"
    process = nodes.by_name["a"].running
    process.send_signal(signal.SIGSTOP)
    try:
        assert received(nodes, "b", "q", 1) == [(b"m", True)]
    finally:
        process.send_signal(signal.SIGCONT)
    with pytest.raises(ConnectionClosedByBroker, match="lost to the cluster") as closed:
        connection.process_data_events(20)
    assert closed.value.reply_code == 320
    wait_until(lambda: members(shared_postgres, nodes) == 2, "the node to join again")
    nodes.channel("a").queue_declare("q", passive=True)
    nodes.errors_expected("a", "node.lost")


def test_publishers_are_blocked_while_the_database_is_away(own_nodes: Nodes, postgres: PostgresServer) -> None:
    """connection.blocked has a reason; connections stay, and continue when the database is back."""
    connection = own_nodes.connect("a")
    reasons: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, method: reasons.append(method.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: reasons.append(""))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"before", PERSISTENT)
    postgres.stop()
    wait_until(lambda: (connection.process_data_events(0.01), bool(reasons))[1], "connection.blocked")
    assert "database" in reasons[0]
    postgres.start()
    wait_until(lambda: (connection.process_data_events(0.01), reasons[-1] == "")[1], "connection.unblocked")
    channel.basic_publish("", "q", b"after", PERSISTENT)
    assert received(own_nodes, "b", "q", 2) == [(b"before", False), (b"after", False)]


def test_a_client_that_comes_while_postgresql_is_away_is_answered(own_nodes: Nodes, postgres: PostgresServer) -> None:
    """It is refused in AMQP's words, so that its library tries another node; a wrong password is told at once."""
    node = own_nodes.by_name["a"]
    postgres.stop()
    wait_until(lambda: [event for event in node.log_events() if event["event"] == "node.paused"], "the lease ends")
    with pytest.raises(AMQPConnectionError, match=r"320.*waits for the database of its cluster"):
        own_nodes.connect("a")
    stranger = pika.ConnectionParameters(
        "127.0.0.1", node.address.port, credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(ProbableAuthenticationError, match="403"):
        pika.BlockingConnection(stranger)
    postgres.start()
    wait_until(lambda: [event for event in node.log_events() if event["event"] == "node.resumed"], "the node goes on")
    assert own_nodes.connect("a").channel().is_open


def test_an_auto_delete_queue_goes_when_its_last_consumer_dies_with_its_node(
    nodes: Nodes, shared_postgres: PostgresServer
) -> None:
    """The nodes that are left delete the queue, and none that has a consumer elsewhere; however many lost theirs."""
    one = nodes.channel("a")
    for queue in ("alone", "shared"):
        one.queue_declare(queue, auto_delete=True)
        one.basic_consume(queue, lambda *_: None)
    nodes.channel("b").basic_consume("shared", lambda *_: None)
    shared_postgres.sql(f'INSERT INTO "{nodes.schema}".orphan SELECT -level FROM generate_series(1, 2500) AS s (level)')
    nodes.by_name["a"].kill()

    def exists(queue: str) -> bool:
        try:
            nodes.channel("b").queue_declare(queue, passive=True)
        except ChannelClosedByBroker:
            return False
        return True

    wait_until(lambda: not exists("alone"), "the end of the queue")
    assert exists("shared")


def test_a_broker_that_cannot_join_says_why_in_one_line(nodes: Nodes, tmp_path: Path, postgres_url: str) -> None:
    """A name that is taken, and a data folder with messages of its own, end the start with exit code 2."""
    namesake = BrokerProcess(tmp_path / "other", "--cluster", postgres_url, "--node", "a")
    namesake.environment["SLOTMQ_CLUSTER__SCHEMA_NAME"] = nodes.schema
    namesake.spawn()
    assert namesake.wait() == 2
    assert "slotmq: cannot join the cluster: another broker is the node a" in namesake.stderr()
    alone = BrokerProcess(tmp_path / "alone").start()
    assert alone.terminate() == 0
    alone.spawn("--cluster", postgres_url, "--node", "c")
    assert alone.wait() == 2
    assert "a node needs another data folder" in alone.stderr()
