"""Queues: declare, passive declare, purge, delete, exclusive, auto-delete, server-named."""

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


def test_server_names_queues(channel: BlockingChannel) -> None:
    """An empty name makes the broker generate one, a new one each time, with the reserved prefix."""
    first = channel.queue_declare("", exclusive=True).method.queue
    second = channel.queue_declare("", exclusive=True).method.queue
    assert first.startswith("amq.gen-") and second.startswith("amq.gen-")
    assert first != second


def test_empty_name_means_the_last_declared_queue(channel: BlockingChannel, queue: str) -> None:
    """After a declare on the channel the empty name stands for that queue in bind, purge, get and consume."""
    channel.queue_bind("", "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"one")
    assert channel.basic_get("", auto_ack=True)[2] == b"one"
    publish(channel, queue, b"two", b"three")
    assert channel.queue_purge("").method.message_count == 2
    consumer = Received(channel, "", auto_ack=True)
    publish(channel, queue, b"four")
    assert consumer.wait(1) == [b"four"]


def test_bind_without_routing_key_and_queue_binds_the_queue_name(channel: BlockingChannel, queue: str) -> None:
    """queue.bind with neither queue nor routing key uses the last declared queue's name for both."""
    channel.queue_bind("", "amq.direct")
    channel.basic_publish("amq.direct", queue, b"found")
    assert drain(channel, queue) == [b"found"]


@pytest.mark.parametrize("method", ["bind", "consume", "get", "purge", "delete"])
def test_empty_name_before_any_declare_is_not_found(channel: BlockingChannel, method: str) -> None:
    """The empty queue name on a channel that has declared none is refused with 404."""
    with channel_closed(404, "NOT_FOUND - no previously declared queue"):
        match method:
            case "bind":
                channel.queue_bind("", "amq.direct", "key")
            case "consume":
                channel.basic_consume("", lambda *_: None)
            case "get":
                channel.basic_get("")
            case "purge":
                channel.queue_purge("")
            case "delete":
                channel.queue_delete("")


def test_declare_is_idempotent(channel: BlockingChannel, queue: str) -> None:
    """Declaring the same queue with the same properties again changes nothing."""
    publish(channel, queue, b"kept")
    assert channel.queue_declare(queue, exclusive=True).method.message_count == 1


def test_passive_declare_ignores_properties(channel: BlockingChannel, queue: str) -> None:
    """A passive declare checks existence only and does not compare durable, exclusive or auto-delete."""
    assert channel.queue_declare(queue, passive=True, durable=True, auto_delete=True).method.queue == queue


def test_passive_declare_of_a_missing_queue(channel: BlockingChannel, name: str) -> None:
    """A passive declare of a missing queue closes the channel with 404."""
    with channel_closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize("argument", ["durable", "auto_delete"])
@pytest.mark.parametrize("current", [False, True])
def test_declare_with_other_properties(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str, argument: str, current: bool
) -> None:
    """Declaring an existing queue with another property closes the channel with 406 and names both values."""
    channel.queue_declare(name, **{argument: current})
    received, had = str(not current).lower(), str(current).lower()
    text = (
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{name}' in vhost '/': "
        f"received '{received}' but current is '{had}'"
    )
    with channel_closed(406, text):
        channel.queue_declare(name, **{argument: not current})
    connection.channel().queue_delete(name)


def test_declare_with_other_exclusiveness(channel: BlockingChannel, queue: str) -> None:
    """Declaring one's own exclusive queue as a shared one closes the channel with 405."""
    with channel_closed(405, locked(queue)):
        channel.queue_declare(queue)


def locked(queue: str) -> str:
    """Return RabbitMQ's text for another connection's exclusive queue."""
    return (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )


@pytest.mark.parametrize("method", ["declare", "passive", "bind", "consume", "get", "purge", "delete", "unbind"])
def test_exclusive_queue_is_locked_for_other_connections(
    connect: Connect, channel: BlockingChannel, queue: str, method: str
) -> None:
    """Every operation of another connection on an exclusive queue closes its channel with 405."""
    channel.queue_bind(queue, "amq.direct", "key")
    other = connect().channel()
    with channel_closed(405, locked(queue)):
        match method:
            case "declare":
                other.queue_declare(queue, exclusive=True)
            case "passive":
                other.queue_declare(queue, passive=True)
            case "bind":
                other.queue_bind(queue, "amq.direct", "key")
            case "unbind":
                other.queue_unbind(queue, "amq.direct", "key")
            case "consume":
                other.basic_consume(queue, lambda *_: None)
            case "get":
                other.basic_get(queue)
            case "purge":
                other.queue_purge(queue)
            case "delete":
                other.queue_delete(queue)
    publish(channel, queue, b"unharmed")
    assert drain(channel, queue) == [b"unharmed"]


def test_other_connections_may_publish_to_an_exclusive_queue(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    """Exclusive locks the queue, not its exchange: messages of other connections arrive."""
    publish(connect().channel(), queue, b"from outside")
    assert Received(channel, queue, auto_ack=True).wait(1) == [b"from outside"]


def test_exclusive_queue_dies_with_its_connection(connect: Connect, name: str) -> None:
    """An exclusive queue, durable or not, is deleted with its connection, and its name is free again."""
    owner = connect()
    owner.channel().queue_declare(name, exclusive=True, durable=True)
    owner.close()
    observer = connect()
    wait_until(lambda: not exists(observer, name), "the exclusive queue is gone")
    observer.channel().queue_declare(name, exclusive=True)


def test_exclusive_queue_outlives_its_channel(connection: pika.BlockingConnection, name: str) -> None:
    """An exclusive queue belongs to the connection, not to the channel that declared it."""
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.close()
    assert exists(connection, name)


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


@pytest.mark.parametrize("prefix", ["amq.", "amq.gen-"])
def test_reserved_queue_names_are_refused(channel: BlockingChannel, name: str, prefix: str) -> None:
    """A client may not declare a queue whose name starts with amq. and that does not exist."""
    text = f"ACCESS_REFUSED - queue name '{prefix}{name}' contains reserved prefix 'amq.*'"
    with channel_closed(403, text):
        channel.queue_declare(prefix + name)


def test_server_named_queue_is_known_by_its_name(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    """A server-named queue is found by a passive declare; an active one is refused, because its name is reserved."""
    server_named = channel.queue_declare("", exclusive=True).method.queue
    assert exists(connection, server_named)
    with channel_closed(403, f"ACCESS_REFUSED - queue name '{server_named}' contains reserved prefix 'amq.*'"):
        channel.queue_declare(server_named, exclusive=True)


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


def test_purge_of_a_missing_queue(channel: BlockingChannel, name: str) -> None:
    """purge of a missing queue closes the channel with 404."""
    with channel_closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.queue_purge(name)


def test_delete_counts_ready_messages(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    """delete removes the queue and returns how many ready messages went with it."""
    publish(channel, queue, b"1", b"2", b"3")
    assert channel.queue_delete(queue).method.message_count == 3
    assert not exists(connection, queue)


def test_delete_of_a_missing_queue_succeeds(channel: BlockingChannel, name: str) -> None:
    """delete is idempotent: deleting a missing queue succeeds with a count of 0."""
    assert channel.queue_delete(name).method.message_count == 0


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
