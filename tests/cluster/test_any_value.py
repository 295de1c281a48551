"""Values of clients and operators that SQL has no place for: no node may end because of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until

LONG = (1 << 63) - 1  # the largest number that the broker takes
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def published_and_read(nodes: Nodes, queue: str, **named: Any) -> Any:
    """Publish a message on each node, and return what a client reads on the other one."""
    found = []
    for one, other in ("ab", "ba"):
        channel = nodes.channel(one, confirms=True)
        channel.basic_publish("", queue, one.encode(), PERSISTENT)
        found.append(nodes.channel(other).basic_get(queue, auto_ack=True)[2])
    assert all(node.alive for node in nodes.by_name.values())
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 3_000_000_000},
        {"x-max-length": LONG},
        {"x-max-length-bytes": LONG, "x-overflow": "reject-publish"},
        {"x-max-length": LONG, "x-max-length-bytes": LONG, "x-dead-letter-exchange": "amq.fanout"},
    ],
)
def test_a_limit_may_be_any_number_that_rabbitmq_accepts(nodes: Nodes, arguments: dict[str, Any]) -> None:
    """A queue with it works on both nodes, with consumers that have room too."""
    channel = nodes.channel("a")
    channel.queue_declare("q", durable=True, arguments=arguments)
    assert published_and_read(nodes, "q") == [b"a", b"b"]
    consumer = nodes.channel("b")
    consumer.basic_consume("q", lambda *_: None, auto_ack=True)
    nodes.channel("a", confirms=True).basic_publish("", "q", b"more", PERSISTENT)
    wait_until(lambda: nodes.channel("a").queue_declare("q", passive=True).method.message_count == 0, "it is consumed")


@pytest.mark.parametrize("value", [1 << 31, LONG])
@pytest.mark.parametrize("key", ["max-length", "max-length-bytes", "message-ttl", "expires"])
def test_a_policy_may_have_any_number_that_rabbitmq_accepts(nodes: Nodes, key: str, value: int) -> None:
    """It is in force for a queue that exists, and for one that is declared under it."""
    folder = nodes.by_name["b"].folder
    nodes.channel("a").queue_declare("q", durable=True)
    ask(folder, "set_policy", name="p", pattern="^q", definition={key: value}, apply_to="queues")
    try:
        nodes.channel("a").queue_declare("qq", durable=True)
        assert published_and_read(nodes, "q") == published_and_read(nodes, "qq") == [b"a", b"b"]
    finally:
        ask(folder, "delete_policy", name="p")


@pytest.fixture
def odd_vhost(nodes: Nodes) -> Iterator[str]:
    """Provide a vhost whose name has a NUL character, which nothing forbids."""
    name, folder = "odd\0 \u2603", nodes.by_name["a"].folder
    ask(folder, "add_vhost", name=name)
    ask(folder, "set_permission", user="guest", vhost=name, configure=".*", write=".*", read=".*")
    yield name
    ask(folder, "delete_vhost", name=name)


def test_a_name_may_have_a_nul_character(nodes: Nodes, odd_vhost: str) -> None:
    """This holds for a vhost, a queue in it and a producer; limits and policies apply there too."""

    def channel(node: str) -> BlockingChannel:
        address = nodes.by_name[node].address
        connection = pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port, odd_vhost))
        made = connection.channel()
        made.confirm_delivery()
        return made

    a, b = channel("a"), channel("b")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish", "x-expires": 600_000}
    a.queue_declare("q\0", durable=True, arguments=arguments)
    for place, node in enumerate((a, b, a)):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-producer": "p\0", "x-seq": LONG - place})
        node.basic_publish("", "q\0", b"%d" % place, properties)
        node.basic_publish("", "q\0", b"again", properties)  # its number was used
        assert b.basic_get("q\0", auto_ack=True)[2] == b"%d" % place
    a.basic_publish("", "q\0", b"first", PERSISTENT)
    with pytest.raises(pika.exceptions.NackError):
        b.basic_publish("", "q\0", b"too much", PERSISTENT)
    ask(nodes.by_name["b"].folder, "set_policy", name="p\0", vhost=odd_vhost, pattern=".", definition={"max-length": 0})
    with pytest.raises(pika.exceptions.NackError):
        a.basic_publish("", "q\0", b"too much", PERSISTENT)
    for node in (a, b):
        node.connection.close()
