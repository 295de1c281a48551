"""Direct replies between clients of different nodes."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.cluster.two_nodes import Nodes, rows
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

REPLY_TO = "amq.rabbitmq.reply-to"


def test_answers_reach_the_client_on_the_other_node_in_order(nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """A server on b answers a client on a; both ends use one name, which b can look up while the client is there."""
    connection = nodes.connect("a")
    client, server = connection.channel(), nodes.channel("b", confirms=True)
    server.queue_declare("rpc", durable=True)
    answers: list[tuple[str, bytes]] = []
    client.basic_consume(REPLY_TO, lambda *found: answers.append((found[1].exchange, found[3])), auto_ack=True)
    client.basic_publish("", "rpc", b"?", pika.BasicProperties(reply_to=REPLY_TO))
    found = wait_until(lambda: (got := server.basic_get("rpc", auto_ack=True))[0] and got, "the request")
    name = found[1].reply_to
    server.queue_declare(name, passive=True)
    for number in range(200):
        server.basic_publish("", name, str(number).encode())
    wait_until(lambda: connection.process_data_events(0) or len(answers) == 200, "the answers")
    assert answers == [("", str(number).encode()) for number in range(200)]
    wait_until(lambda: rows(shared_postgres, nodes.schema) == 0, "the settlement")


def test_a_node_that_has_just_joined_gets_answers(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """The other node knows of it at once: with this lease, its next beat would show it five seconds later."""
    with Nodes(tmp_path, postgres_url, schema, "a", "b", lease_ms=30_000) as nodes:
        server = nodes.channel("b", confirms=True)
        server.queue_declare("rpc", durable=True)
        assert nodes.by_name["a"].terminate() == 0
        nodes.by_name["a"].start()
        connection = nodes.connect("a")
        client = connection.channel()
        answers: list[bytes] = []
        client.basic_consume(REPLY_TO, lambda *found: answers.append(found[3]), auto_ack=True)
        client.basic_publish("", "rpc", b"?", pika.BasicProperties(reply_to=REPLY_TO))
        found = wait_until(lambda: (got := server.basic_get("rpc", auto_ack=True))[0] and got, "the request")
        server.basic_publish("", found[1].reply_to, b"!", mandatory=True)
        wait_until(lambda: connection.process_data_events(0) or answers == [b"!"], "the answer")


def test_name_of_no_node_leads_nowhere(nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """A publish to a name of a former epoch or of none is dropped, and a passive declare finds no such queue."""
    channel = nodes.channel("b", confirms=True)
    wait_until(lambda: rows(shared_postgres, nodes.schema) == 0, "the end of other tests' queues")
    for name in (f"{REPLY_TO}.999999.x", f"{REPLY_TO}.x.y", f"{REPLY_TO}.\u0663.x"):
        channel.basic_publish("", name, b"")
    assert rows(shared_postgres, nodes.schema) == 0
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(f"{REPLY_TO}.999999.x", passive=True)
    assert refused.value.reply_code == 404
