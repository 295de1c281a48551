"""A prefetch that consumers of several queues share, on one of two nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until

QUEUES = ("first", "second", "third")


class Served:
    """Consumers of all queues on one channel with a prefetch; notes whose messages came, and acks if it may."""

    def __init__(self, channel: BlockingChannel, prefetch: int, *, acks: bool = True) -> None:
        self.channel = channel
        self.acks = acks
        self.queues: list[str] = []
        self.on_delivery = lambda: None
        channel.basic_qos(prefetch_count=prefetch, global_qos=True)
        for queue in QUEUES:
            channel.basic_consume(queue, partial(self._take, queue))

    def _take(self, queue: str, channel: BlockingChannel, method: Any, _properties: Any, _body: bytes) -> None:
        self.queues.append(queue)
        self.on_delivery()
        if self.acks:
            channel.basic_ack(method.delivery_tag)

    def count(self) -> int:
        """Return how many messages came."""
        self.channel.connection.process_data_events(time_limit=0)
        return len(self.queues)


def declare(channel: BlockingChannel, messages: int) -> None:
    """Declare the queues, with messages."""
    for queue in QUEUES:
        channel.queue_declare(queue)
        for number in range(messages):
            channel.basic_publish("", queue, str(number).encode())


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_no_queue_starves_while_others_use_the_prefetch_up(nodes: Nodes, prefetch: int) -> None:
    """Each queue is served while the others have messages, though the first one gets a new one for each delivery."""
    a = nodes.channel("a", confirms=True)
    declare(a, 100)
    served = Served(nodes.channel("b"), prefetch)
    served.on_delivery = lambda: a.basic_publish("", QUEUES[0], b"more")
    wait_until(lambda: served.count() >= 180, "180 deliveries")
    shares = {queue: served.queues[:180].count(queue) for queue in QUEUES}
    assert min(shares.values()) >= 20, shares


def test_what_waits_for_its_turn_goes_to_a_node_that_wants_it(nodes: Nodes) -> None:
    """While a consumer works on one message, those of its other queues are not kept from another node."""
    a = nodes.channel("a", confirms=True)
    declare(a, 1)
    busy = Served(nodes.channel("b"), 1, acks=False)
    wait_until(lambda: busy.count() == 1, "a delivery")
    idle = Served(nodes.channel("a"), 10)
    wait_until(lambda: idle.count() == 2, "the other messages")
    assert sorted([*busy.queues, *idle.queues]) == sorted(QUEUES)
