"""Queues with pika: counts, auto-delete, purge, delete, and what their consumers hear; also on two nodes."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.deadline import wait_until
from tests.integration.pika.conversation import Received, channel_closed, drain, publish, ready

Connect = Callable[..., pika.BlockingConnection]


def exists(connection: pika.BlockingConnection, queue: str) -> bool:
    """Return whether a queue exists, checked on a separate channel."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404, error
        return False
    channel.close()
    return True


def test_declare_reports_name_messages_and_consumers(channel: BlockingChannel, queue: str) -> None:
    """declare-ok carries the queue's name, its ready messages and its consumers."""
    publish(channel, queue, b"1", b"2")
    consumer = Received(channel, queue, consumer_tag="only")
    consumer.wait(2)
    publish(channel, queue, b"3")
    consumer.wait(3)
    channel.basic_cancel("only")
    channel.basic_nack(0, multiple=True)
    wait_until(lambda: ready(channel, queue) == 3, "the messages are requeued")
    answer = channel.queue_declare(queue, exclusive=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 3, 0)
    Received(channel, queue, consumer_tag="again").wait(3)
    answer = channel.queue_declare(queue, exclusive=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 0, 1)


def test_auto_delete_queue_goes_with_its_last_consumer(connection: pika.BlockingConnection, name: str) -> None:
    """An auto-delete queue stays until its last consumer is cancelled."""
    channel = connection.channel()
    channel.queue_declare(name, auto_delete=True)
    publish(channel, name, b"waiting")
    channel.basic_consume(name, lambda *_: None, consumer_tag="first")
    channel.basic_consume(name, lambda *_: None, consumer_tag="second")
    channel.basic_cancel("first")
    assert exists(connection, name)
    channel.basic_cancel("second")
    wait_until(lambda: not exists(connection, name), "the auto-delete queue is gone")


@pytest.mark.parametrize("how", ["channel", "connection"])
def test_auto_delete_queue_goes_when_its_consumer_leaves(connect: Connect, name: str, how: str) -> None:
    """Closing the channel or the connection of the last consumer deletes an auto-delete queue."""
    consumers = connect()
    channel = consumers.channel()
    channel.queue_declare(name, auto_delete=True)
    channel.basic_consume(name, lambda *_: None)
    (channel if how == "channel" else consumers).close()
    observer = connect()
    wait_until(lambda: not exists(observer, name), "the auto-delete queue is gone")


def test_auto_delete_queue_without_consumers_stays(connect: Connect, name: str) -> None:
    """An auto-delete queue that never had a consumer survives its connection."""
    owner = connect()
    owner.channel().queue_declare(name, auto_delete=True)
    owner.close()
    observer = connect()
    assert exists(observer, name)
    observer.channel().queue_delete(name)


def test_purge_drops_ready_messages_and_counts_them(channel: BlockingChannel, queue: str) -> None:
    """purge returns how many ready messages it dropped and leaves the queue empty."""
    publish(channel, queue, *[b"x"] * 7)
    assert channel.queue_purge(queue).method.message_count == 7
    assert channel.queue_purge(queue).method.message_count == 0
    assert drain(channel, queue) == []


def test_purge_leaves_unacked_messages(channel: BlockingChannel, queue: str) -> None:
    """An unacked message is not purged: requeued, it is delivered again."""
    publish(channel, queue, b"held", b"ready")
    held = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 1
    channel.basic_nack(held[0].delivery_tag)
    assert drain(channel, queue) == [b"held"]


def test_delete_counts_ready_messages(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    """delete removes the queue and returns how many ready messages went with it."""
    publish(channel, queue, b"1", b"2", b"3")
    assert channel.queue_delete(queue).method.message_count == 3
    assert not exists(connection, queue)


def test_delete_if_unused(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    """delete with if-unused is refused with 406 while the queue has a consumer."""
    consumers = connection.channel()
    consumers.basic_consume(queue, lambda *_: None, consumer_tag="user")
    with channel_closed(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        channel.queue_delete(queue, if_unused=True)
    consumers.basic_cancel("user")
    consumers.queue_delete(queue, if_unused=True)
    assert not exists(connection, queue)


def test_delete_if_empty(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    """delete with if-empty is refused with 406 while the queue holds a ready message."""
    publish(channel, queue, b"there")
    with channel_closed(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)
    other = connection.channel()
    assert drain(other, queue) == [b"there"]
    other.queue_delete(queue, if_empty=True)
    assert not exists(connection, queue)


def test_redeclared_queue_is_a_new_one(channel: BlockingChannel, queue: str) -> None:
    """A deleted queue's messages and bindings do not come back when its name is declared again."""
    channel.queue_bind(queue, "amq.direct", queue)
    publish(channel, queue, b"old")
    channel.queue_delete(queue)
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish("amq.direct", queue, b"unroutable now")
    assert drain(channel, queue) == []


@pytest.mark.parametrize("queue_name", ["é" * 127, "x" * 255, " ", "a/b?c=%20", "日本語", "'\"{}"])
def test_any_utf8_up_to_255_bytes_is_a_name(channel: BlockingChannel, queue_name: str) -> None:
    """Any UTF-8 text of up to 255 bytes is a queue name and a routing key."""
    assert channel.queue_declare(queue_name, exclusive=True).method.queue == queue_name
    publish(channel, queue_name, b"named")
    assert drain(channel, queue_name) == [b"named"]


def test_deleted_queue_cancels_its_consumers(connection: pika.BlockingConnection, queue: str) -> None:
    """The broker sends basic.cancel to consumers of a deleted queue; their channel stays open."""
    consumers, other = connection.channel(), connection.channel()
    cancelled: list[str] = []
    consumers.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumers.basic_consume(queue, lambda *_: None, consumer_tag="notify me")
    other.queue_delete(queue)

    def told() -> bool:
        connection.process_data_events(time_limit=0)
        return cancelled == ["notify me"]

    wait_until(told, "basic.cancel from the broker")
    assert consumers.is_open
    consumers.queue_declare(queue, exclusive=True)


def test_unacked_messages_of_a_deleted_queue_may_be_acked(connection: pika.BlockingConnection, queue: str) -> None:
    """Settling a message of a deleted queue is not an error."""
    channel = connection.channel()
    publish(channel, queue, b"1", b"2", b"3")
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    channel.queue_delete(queue)
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1], requeue=True)
    channel.basic_reject(tags[2], requeue=False)
    assert channel.queue_delete(queue).method.message_count == 0
    assert ready(channel, channel.queue_declare("", exclusive=True).method.queue) == 0
