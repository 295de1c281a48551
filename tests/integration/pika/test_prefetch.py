"""basic.qos: how many unacked messages a consumer, or a channel, may hold."""

from __future__ import annotations

from functools import partial
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.deadline import wait_until
from tests.integration.pika.conversation import Received, publish, ready


def numbered(count: int) -> list[bytes]:
    """Return this many different bodies."""
    return [str(number).encode() for number in range(count)]


@pytest.mark.parametrize("prefetch", [1, 3, 10])
def test_consumer_holds_no_more_than_its_prefetch(channel: BlockingChannel, queue: str, prefetch: int) -> None:
    """A consumer gets exactly its prefetch of messages, and one more for each that it settles."""
    publish(channel, queue, *numbered(12))
    channel.basic_qos(prefetch_count=prefetch)
    consumer = Received(channel, queue)
    consumer.wait(prefetch)
    assert consumer.settle() == numbered(prefetch)
    assert ready(channel, queue) == 12 - prefetch
    channel.basic_ack(consumer.tags[0])
    assert consumer.wait(prefetch + 1) == numbered(prefetch + 1)
    channel.basic_reject(consumer.tags[1], requeue=False)
    assert consumer.wait(prefetch + 2) == numbered(prefetch + 2)
    assert consumer.settle() == numbered(prefetch + 2)


def test_ack_multiple_gives_credit_for_all(channel: BlockingChannel, queue: str) -> None:
    """ack with multiple frees as much credit as it settled messages."""
    publish(channel, queue, *numbered(20))
    channel.basic_qos(prefetch_count=5)
    consumer = Received(channel, queue)
    consumer.wait(5)
    channel.basic_ack(consumer.tags[-1], multiple=True)
    assert consumer.wait(10) == numbered(10)
    assert consumer.settle() == numbered(10)


def test_prefetch_counts_for_each_consumer(channel: BlockingChannel, queue: str) -> None:
    """Two consumers of one channel have the prefetch each."""
    publish(channel, queue, *numbered(20))
    channel.basic_qos(prefetch_count=3)
    first, second = Received(channel, queue), Received(channel, queue)
    first.wait(3)
    second.wait(3)
    assert (len(first.settle()), len(second.settle())) == (3, 3)
    assert ready(channel, queue) == 14


def test_new_prefetch_counts_for_new_consumers_only(channel: BlockingChannel, queue: str) -> None:
    """qos without global leaves existing consumers unchanged."""
    publish(channel, queue, *numbered(20))
    channel.basic_qos(prefetch_count=2)
    first = Received(channel, queue)
    first.wait(2)
    channel.basic_qos(prefetch_count=5)
    second = Received(channel, queue)
    second.wait(5)
    assert (len(first.settle()), len(second.settle())) == (2, 5)


def test_global_prefetch_is_shared_by_the_channel(channel: BlockingChannel, queue: str) -> None:
    """qos with global limits all consumers of the channel together."""
    publish(channel, queue, *numbered(20))
    channel.basic_qos(prefetch_count=5, global_qos=True)
    first, second = Received(channel, queue), Received(channel, queue)

    def held() -> int:
        channel.connection.process_data_events(time_limit=0)
        return len(first.bodies) + len(second.bodies)

    wait_until(lambda: held() == 5, "five deliveries")
    assert len(first.settle()) + len(second.settle()) == 5
    channel.basic_ack(2, multiple=True)
    wait_until(lambda: held() == 7, "two more deliveries")
    assert len(first.settle()) + len(second.settle()) == 7


class Turns:
    """Consumers of one channel that share its prefetch and ack at once; records the order of their deliveries."""

    def __init__(self, channel: BlockingChannel, prefetch: int, queues: list[str]) -> None:
        self.channel = channel
        self.served: list[int] = []
        self.on_delivery = lambda: None
        channel.basic_qos(prefetch_count=prefetch, global_qos=True)
        for number, queue in enumerate(queues):
            channel.basic_consume(queue, partial(self._take, number))

    def _take(self, number: int, channel: BlockingChannel, method: Any, _properties: Any, _body: bytes) -> None:
        self.served.append(number)
        self.on_delivery()
        channel.basic_ack(method.delivery_tag)

    def wait(self, count: int) -> list[int]:
        """Return the consumers of the first `count` deliveries."""

        def all_there() -> bool:
            self.channel.connection.process_data_events(time_limit=0)
            return len(self.served) >= count

        wait_until(all_there, f"{count} deliveries")
        return self.served[:count]


def test_consumers_of_a_queue_take_turns_in_a_global_prefetch(channel: BlockingChannel, queue: str) -> None:
    """Two consumers of one queue that share a prefetch of 1 get equally many messages, except at the start."""
    publish(channel, queue, *numbered(100))
    served = Turns(channel, 1, [queue, queue]).wait(100)
    assert abs(served.count(0) - served.count(1)) <= 2, served


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_queues_take_turns_in_a_global_prefetch(connection: pika.BlockingConnection, prefetch: int) -> None:
    """Three queues whose consumers share a prefetch are served in rotation, whatever is published meanwhile."""
    channel, publisher = connection.channel(), connection.channel()
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
    for queue in queues:
        publish(publisher, queue, *numbered(100))
    turns = Turns(channel, prefetch, queues)
    turns.on_delivery = lambda: channel.basic_publish("", queues[0], b"more")
    served = turns.wait(240)
    for window in range(3 * prefetch, 240, 3 * prefetch):
        assert set(served[window - 3 * prefetch : window]) == {0, 1, 2}, served


def test_a_global_prefetch_that_is_used_up_holds_no_ack_consumers(channel: BlockingChannel, queue: str) -> None:
    """A no-ack consumer waits while other consumers of its channel use up the prefetch, and uses none of it."""
    other = channel.queue_declare("", exclusive=True).method.queue
    publish(channel, queue, b"held")
    publish(channel, other, *numbered(5))
    channel.basic_qos(prefetch_count=1, global_qos=True)
    first = Received(channel, queue)
    first.wait(1)
    free = Received(channel, other, auto_ack=True)
    assert free.settle() == []
    wait_until(lambda: ready(channel, other) == 5, "all messages in the queue")  # of a cluster, whose counts follow
    channel.basic_ack(first.tags[0])
    assert free.wait(5) == numbered(5)


def test_global_and_own_prefetch_both_count(channel: BlockingChannel, queue: str) -> None:
    """With both limits a consumer gets the smaller one."""
    publish(channel, queue, *numbered(20))
    # In this order: RabbitMQ 3.10 forgets the global limit at a later qos without global.
    channel.basic_qos(prefetch_count=3)
    channel.basic_qos(prefetch_count=4, global_qos=True)
    first, second = Received(channel, queue), Received(channel, queue)

    def held() -> int:
        channel.connection.process_data_events(time_limit=0)
        return len(first.bodies) + len(second.bodies)

    wait_until(lambda: held() == 4, "four deliveries")
    assert len(first.settle()) + len(second.settle()) == 4
    assert max(len(first.bodies), len(second.bodies)) <= 3


def test_raised_global_prefetch_counts_at_once(channel: BlockingChannel, queue: str) -> None:
    """A larger global limit applies to existing consumers at once; 0 removes the limit."""
    publish(channel, queue, *numbered(20))
    channel.basic_qos(prefetch_count=2, global_qos=True)
    consumer = Received(channel, queue)
    consumer.wait(2)
    assert len(consumer.settle()) == 2
    channel.basic_qos(prefetch_count=6, global_qos=True)
    consumer.wait(6)
    assert len(consumer.settle()) == 6
    channel.basic_qos(prefetch_count=0, global_qos=True)
    assert consumer.wait(20) == numbered(20)


def test_prefetch_is_the_channels_own(connection: pika.BlockingConnection, queue: str) -> None:
    """A limit on one channel does not affect another channel."""
    limited, free = connection.channel(), connection.channel()
    limited.basic_qos(prefetch_count=1, global_qos=True)
    consumer = Received(limited, queue)
    publish(connection.channel(), queue, *numbered(5))
    consumer.wait(1)
    assert Received(free, queue).wait(4) == numbered(5)[1:]


def test_prefetch_does_not_bind_no_ack_consumers(channel: BlockingChannel, queue: str) -> None:
    """A no-ack consumer has no unacked messages, so no limit stops it."""
    publish(channel, queue, *numbered(10))
    channel.basic_qos(prefetch_count=1)
    assert Received(channel, queue, auto_ack=True).wait(10) == numbered(10)


def test_full_consumer_does_not_stop_the_others(connection: pika.BlockingConnection, queue: str) -> None:
    """Messages skip a consumer whose prefetch is used up, and go to one with credit."""
    stuck, busy = connection.channel(), connection.channel()
    stuck.basic_qos(prefetch_count=1)
    first = Received(stuck, queue)
    publish(busy, queue, b"held")
    first.wait(1)
    second = Received(busy, queue, auto_ack=True)
    publish(busy, queue, *numbered(10))
    assert second.wait(10) == numbered(10)
    assert first.settle() == [b"held"]
