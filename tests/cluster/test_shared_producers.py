"""Numbered producers, whose publishes come through different nodes: each number is published once."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until


def publish(channel: BlockingChannel, *sequences: int, producer: str = "p\0d") -> None:
    """Publish numbered messages, each with its number as the body."""
    for sequence in sequences:
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-producer": producer, "x-seq": sequence})
        channel.basic_publish("", "q", str(sequence).encode(), properties)


def taken(channel: BlockingChannel) -> list[int]:
    """Fetch all messages, and return their numbers."""
    found: list[int] = []
    while True:
        frame, _, body = channel.basic_get("q", auto_ack=True)
        if frame is None:
            return found
        found.append(int(body))


def ready(channel: BlockingChannel) -> int:
    """Return how many messages are ready."""
    count: int = channel.queue_declare("q", passive=True).method.message_count
    return count


def test_a_number_is_published_once_through_whichever_node(nodes: Nodes) -> None:
    """A producer moves from node to node with the numbers that it has used, also in transactions."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b", confirms=True)
    a.queue_declare("q", durable=True)
    publish(a, *range(10))
    publish(b, *range(5, 15), 20)
    publish(a, *range(25))
    kept = nodes.channel("b")
    kept.tx_select()
    publish(kept, *range(20, 30))
    publish(a, 27)  # takes the producer away from the transaction
    kept.tx_commit()
    wait_until(lambda: ready(a) == 30, "the messages")
    assert sorted(taken(a)) == list(range(30))


def test_a_number_that_a_full_queue_refused_can_be_sent_again(nodes: Nodes) -> None:
    """None of the queues of the message took it; once there is room all do, through whichever node it comes."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b", confirms=True)
    a.queue_declare("q", durable=True)
    a.queue_declare("full", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    a.exchange_declare("both", "fanout")
    for queue in ("q", "full"):
        a.queue_bind(queue, "both")
    refused: list[int] = []
    for sequence in range(5):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-producer": "twice", "x-seq": sequence})
        try:
            a.basic_publish("both", "", str(sequence).encode(), properties)
        except NackError:
            refused.append(sequence)
    assert (refused, ready(a)) == ([2, 3, 4], 2)
    a.queue_purge("full")
    for channel, sequence in ((a, 1), (a, 2), (b, 2), (b, 3), (a, 3)):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-producer": "twice", "x-seq": sequence})
        channel.basic_publish("both", "", str(sequence).encode(), properties)
    wait_until(lambda: ready(a) == 4, "the messages")
    assert taken(a) == [0, 1, 2, 3]


def test_producer_of_a_dead_node_is_claimed(nodes: Nodes) -> None:
    """Messages confirmed by a dead node are not published again, and its producer can be used."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b", confirms=True)
    a.queue_declare("q", durable=True)
    publish(a, *range(10), producer="mortal")
    nodes.by_name["a"].kill()
    publish(b, *range(12), producer="mortal")
    wait_until(lambda: ready(b) == 12, "the messages")
    assert sorted(taken(b)) == list(range(12))


def test_producer_belongs_to_the_user_that_used_it_first(nodes: Nodes) -> None:
    """Another user is refused on every node."""
    a = nodes.channel("a", confirms=True)
    a.queue_declare("q", durable=True)
    publish(a, 1, producer="owned")
    steps: list[tuple[str, dict[str, Any]]] = [
        ("add_user", {"name": "u", "password": "p"}),
        ("set_permission", {"user": "u", "configure": "", "write": ".*", "read": ""}),
    ]
    for verb, arguments in steps:
        ask(nodes.by_name["a"].folder, verb, **arguments)
    address = nodes.by_name["b"].address
    parameters = pika.ConnectionParameters(address.host, address.port, credentials=pika.PlainCredentials("u", "p"))
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(ChannelClosedByBroker) as refused:
            publish(channel, 2, producer="owned")
    assert (refused.value.reply_code, "refused for user 'u'" in refused.value.reply_text) == (403, True)
