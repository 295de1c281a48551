"""Nodes whose system clocks differ by an hour: messages expire and are released by their age."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

CLOCK = """
import time
from functools import partial
from pathlib import Path

def ahead(read, hour):
    return read() + hour

time.time = partial(ahead, time.time, 3600)
time.time_ns = partial(ahead, time.time_ns, 3600 * 10**9)
Path(__file__).with_name("is_ahead").touch()
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, shared_postgres: PostgresServer) -> Iterator[Nodes]:
    """Provide two nodes; the clock of `a` is an hour ahead."""
    folder = tmp_path_factory.mktemp("skewed")
    nodes = Nodes(folder, shared_postgres.url, "slotmq_skewed", "a", "b")
    (folder / "ahead").mkdir()
    (folder / "ahead" / "sitecustomize.py").write_text(CLOCK)
    nodes.by_name["a"].environment["PYTHONPATH"] = str(folder / "ahead")
    with nodes:
        assert (folder / "ahead" / "is_ahead").exists()
        yield nodes


def publish(channel: BlockingChannel, exchange: str, key: str, body: bytes, **properties: Any) -> None:
    """Publish a persistent message, and wait for its confirm."""
    channel.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2, **properties))


def taken(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Fetch all messages of a queue."""
    found: list[bytes] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


@pytest.mark.parametrize(("here", "there"), ["ab", "ba"])
def test_messages_expire_by_their_age(nodes: Nodes, here: str, there: str) -> None:
    """A message of either node has its time to live on the other one: all of it, and no more."""
    publisher, consumer = nodes.channel(here, confirms=True), nodes.channel(there)
    own, dated = f"own-{here}", f"dated-{here}"
    consumer.queue_declare(own, durable=True)
    consumer.queue_declare(dated, durable=True, arguments={"x-message-ttl": 600_000})
    for queue in (own, dated):
        publish(publisher, "", queue, b"lasting", expiration="300000")
        publish(publisher, "", queue, b"brief", expiration="300")

    def ready(queue: str) -> int:
        count: int = consumer.queue_declare(queue, passive=True).method.message_count
        return count

    wait_until(lambda: (ready(own), ready(dated)) == (1, 1), "the end of two messages")
    assert (taken(consumer, own), taken(consumer, dated)) == ([b"lasting"], [b"lasting"])


@pytest.mark.parametrize(("here", "there"), ["ab", "ba"])
def test_delayed_messages_are_released_by_their_age(nodes: Nodes, here: str, there: str) -> None:
    """A delay is as long as it says, and an hour is not over yet."""
    publisher, consumer = nodes.channel(here, confirms=True), nodes.channel(there)
    later, queue = f"later-{here}", f"released-{here}"
    publisher.exchange_declare(later, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    consumer.queue_declare(queue, durable=True)
    consumer.queue_bind(queue, later)
    publish(publisher, later, "", b"late", headers={"x-delay": 1_800_000})
    publish(publisher, later, "", b"soon", headers={"x-delay": 200})
    assert wait_until(lambda: taken(consumer, queue), "the delayed message") == [b"soon"]


def test_a_queue_expires_when_it_was_not_used(nodes: Nodes) -> None:
    """The time for which a queue may go unused is the same on both nodes."""
    a, b = nodes.channel("a"), nodes.channel("b")
    a.queue_declare("lasting", arguments={"x-expires": 600_000})
    b.queue_declare("idle", arguments={"x-expires": 300})

    def names() -> list[str]:
        return [row["name"] for row in ask(nodes.by_name["a"].folder, "list_queues")]

    wait_until(lambda: "idle" not in names(), "the end of the queue")
    assert "lasting" in names()
