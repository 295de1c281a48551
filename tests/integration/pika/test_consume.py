"""Consuming with pika: ack, nack, reject, recover, get, requeue order, redelivered; also on two nodes."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.deadline import wait_until
from tests.integration.pika.conversation import (
    Received,
    drain,
    publish,
    ready,
)

Connect = Callable[..., pika.BlockingConnection]


def numbered(count: int) -> list[bytes]:
    """Return this many different bodies."""
    return [str(number).encode() for number in range(count)]


def test_deliveries_come_in_order_with_rising_tags(channel: BlockingChannel, queue: str) -> None:
    """A consumer gets messages in publishing order, with delivery tags from 1 without gaps, not redelivered."""
    consumer = Received(channel, queue)
    publish(channel, queue, *numbered(50))
    assert consumer.wait(50) == numbered(50)
    assert consumer.tags == list(range(1, 51))
    assert not any(consumer.redelivered)


def test_acked_messages_are_gone(connection: pika.BlockingConnection, queue: str) -> None:
    """An acked message does not come back when its channel closes; an unacked one does, redelivered."""
    channel = connection.channel()
    publish(channel, queue, *numbered(4))
    consumer = Received(channel, queue)
    consumer.wait(4)
    channel.basic_ack(consumer.tags[0])
    channel.basic_ack(consumer.tags[2])
    channel.close()
    second = Received(connection.channel(), queue)
    assert second.wait(2) == [b"1", b"3"]
    assert second.redelivered == [True, True]


def test_ack_multiple(connection: pika.BlockingConnection, queue: str) -> None:
    """ack with multiple settles everything up to the tag, and nothing after it."""
    channel = connection.channel()
    publish(channel, queue, *numbered(6))
    consumer = Received(channel, queue)
    consumer.wait(6)
    channel.basic_ack(consumer.tags[3], multiple=True)
    channel.close()
    assert Received(connection.channel(), queue).wait(2) == [b"4", b"5"]


def test_ack_everything_by_tag_zero(connection: pika.BlockingConnection, queue: str) -> None:
    """ack of tag 0 with multiple settles all unacked messages of the channel; none at all is not an error."""
    channel = connection.channel()
    channel.basic_ack(0, multiple=True)
    publish(channel, queue, *numbered(3))
    Received(channel, queue).wait(3)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert ready(connection.channel(), queue) == 0


def test_channel_acks_only_its_own(connection: pika.BlockingConnection, queue: str) -> None:
    """ack with multiple on one channel leaves the messages of another channel unacked."""
    first, second = connection.channel(), connection.channel()
    publish(first, queue, *numbered(2))
    one, two = first.basic_get(queue)[0], second.basic_get(queue)[0]
    assert (one.delivery_tag, two.delivery_tag) == (1, 1)
    first.basic_ack(0, multiple=True)
    second.basic_nack(two.delivery_tag)
    wait_until(lambda: ready(first, queue) == 1, "the second message is ready again")
    assert drain(first, queue) == [b"1"]


def test_no_ack_consumer_takes_for_good(connection: pika.BlockingConnection, queue: str) -> None:
    """Messages delivered to a no-ack consumer do not come back when its channel closes."""
    channel = connection.channel()
    publish(channel, queue, *numbered(10))
    Received(channel, queue, auto_ack=True).wait(10)
    channel.close()
    assert ready(connection.channel(), queue) == 0


@pytest.mark.parametrize("how", ["nack", "nack multiple", "nack all", "reject"])
def test_requeued_messages_return_to_their_place(channel: BlockingChannel, queue: str, how: str) -> None:
    """Requeued messages are delivered before later ones, in their old order, as redelivered."""
    publish(channel, queue, *numbered(6))
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(4)]
    match how:
        case "nack":
            for tag in reversed(tags):
                channel.basic_nack(tag)
        case "nack multiple":
            channel.basic_nack(tags[-1], multiple=True)
        case "nack all":
            channel.basic_nack(0, multiple=True)
        case "reject":
            for tag in (tags[1], tags[3], tags[0], tags[2]):
                channel.basic_reject(tag)
    wait_until(lambda: ready(channel, queue) == 6, "everything is ready again")
    got = [channel.basic_get(queue, auto_ack=True) for _ in range(6)]
    assert [body for _, _, body in got] == numbered(6)
    assert [method.redelivered for method, _, _ in got] == [True] * 4 + [False] * 2


def test_requeue_of_some_keeps_order(channel: BlockingChannel, queue: str) -> None:
    """A message requeued while its neighbours stay unacked is delivered alone, before all fresh ones."""
    publish(channel, queue, *numbered(5))
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(4)]
    channel.basic_nack(tags[2])
    wait_until(lambda: ready(channel, queue) == 2, "the third message is ready again")
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"2", True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"4", False)


def test_requeued_message_goes_to_another_consumer(connect: Connect, name: str) -> None:
    """When a consumer's connection closes, its unacked message is delivered to another connection's consumer."""
    first, second = connect(), connect()
    observer = first.channel()
    observer.queue_declare(name, auto_delete=True)
    publish(observer, name, *numbered(5))
    Received(first.channel(), name).wait(5)
    other = Received(second.channel(), name)
    assert other.settle() == []
    first.close()
    assert other.wait(5) == numbered(5)
    assert other.redelivered == [True] * 5


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_refused_messages_without_requeue_are_dropped(channel: BlockingChannel, queue: str, method: str) -> None:
    """nack and reject without requeue drop the message."""
    publish(channel, queue, *numbered(2))
    tag = channel.basic_get(queue)[0].delivery_tag
    getattr(channel, f"basic_{method}")(tag, requeue=False)
    assert drain(channel, queue) == [b"1"]


def test_recover_redelivers_what_the_channel_holds(channel: BlockingChannel, queue: str) -> None:
    """recover with requeue requeues every unacked message of the channel; they are delivered as redelivered."""
    publish(channel, queue, *numbered(3))
    consumer = Received(channel, queue)
    consumer.wait(3)
    channel.basic_recover(requeue=True)
    assert consumer.wait(6) == numbered(3) * 2
    assert consumer.redelivered == [False] * 3 + [True] * 3
    assert consumer.tags == [1, 2, 3, 4, 5, 6]


def test_get_counts_what_is_left(channel: BlockingChannel, queue: str) -> None:
    """get-ok says how many messages are ready after it, and carries exchange, key and redelivered."""
    publish(channel, queue, *numbered(3))
    method, _, body = channel.basic_get(queue)
    assert (method.message_count, method.exchange, method.routing_key, method.redelivered) == (2, "", queue, False)
    assert (method.delivery_tag, body) == (1, b"0")
    assert [channel.basic_get(queue)[0].message_count for _ in range(2)] == [1, 0]


def test_messages_are_shared_out_among_consumers(connection: pika.BlockingConnection, queue: str) -> None:
    """Consumers of a queue get messages in turn, each message once."""
    consumers = [Received(connection.channel(), queue, auto_ack=True) for _ in range(3)]
    publisher = connection.channel()
    publish(publisher, queue, *numbered(30))

    def all_there() -> bool:
        connection.process_data_events(time_limit=0)
        return sum(len(consumer.bodies) for consumer in consumers) >= 30

    wait_until(all_there, "30 deliveries")
    assert sorted(body for consumer in consumers for body in consumer.bodies) == sorted(numbered(30))
    assert [len(consumer.bodies) for consumer in consumers] == [10, 10, 10]


def test_cancelled_consumer_gets_no_more(channel: BlockingChannel, queue: str) -> None:
    """After cancel-ok nothing is delivered; unacked messages of the consumer can still be acked."""
    publish(channel, queue, *numbered(2))
    consumer = Received(channel, queue)
    consumer.wait(2)
    channel.basic_cancel(consumer.tag)
    publish(channel, queue, b"later")
    assert consumer.settle() == numbered(2)
    channel.basic_ack(0, multiple=True)
    assert drain(channel, queue) == [b"later"]


def test_unacked_messages_are_not_ready(channel: BlockingChannel, queue: str) -> None:
    """An unacked message is neither counted as ready nor delivered to another consumer."""
    publish(channel, queue, *numbered(3))
    held = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
    assert ready(channel, queue) == 1
    assert drain(channel, queue) == [b"2"]
    channel.basic_nack(held[0])
    wait_until(lambda: ready(channel, queue) == 1, "the first message is ready again")


def test_redelivered_is_remembered_over_many_rounds(channel: BlockingChannel, queue: str) -> None:
    """A message requeued again and again stays first, intact and redelivered."""
    publish(channel, queue, b"again", b"next")
    for attempt in range(20):
        method, _, body = channel.basic_get(queue)
        assert (body, method.redelivered) == (b"again", attempt > 0)
        channel.basic_reject(method.delivery_tag)
        wait_until(lambda: ready(channel, queue) == 2, "it is ready again")


def test_thousands_of_messages_over_many_slots(channel: BlockingChannel, queue: str) -> None:
    """More messages than fit into several slots are delivered once each and in order, and the queue ends empty."""
    bodies = numbered(3500)
    for body in bodies:
        channel.basic_publish("", queue, body)
    channel.basic_qos(prefetch_count=100)
    seen: list[bytes] = []

    def take(_channel: BlockingChannel, method: pika.spec.Basic.Deliver, _properties: object, body: bytes) -> None:
        seen.append(body)
        if len(seen) % 50 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)

    channel.basic_consume(queue, take)

    def all_there() -> bool:
        channel.connection.process_data_events(time_limit=0.05)
        return len(seen) >= len(bodies)

    wait_until(all_there, f"{len(bodies)} deliveries")
    assert seen == bodies
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
