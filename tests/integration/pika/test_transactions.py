"""Transactions with pika: visible to others at the commit, dropped by rollback and channel close, durable."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import Received, channel_closed, drain, parameters, publish, ready

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def transaction(connection: pika.BlockingConnection) -> BlockingChannel:
    """Provide a transactional channel."""
    channel = connection.channel()
    channel.tx_select()
    return channel


def test_commit_shows_what_was_published(transaction: BlockingChannel, channel: BlockingChannel, queue: str) -> None:
    """No consumer sees a message before the commit; all messages are visible after it."""
    for body in (b"1", b"2", b"3"):
        transaction.basic_publish("", queue, body)
    assert ready(transaction, queue) == 0
    transaction.tx_commit()
    assert drain(channel, queue) == [b"1", b"2", b"3"]
    transaction.basic_publish("", queue, b"4")
    transaction.tx_commit()
    assert drain(channel, queue) == [b"4"]


def test_closing_a_channel_rolls_back(transaction: BlockingChannel, channel: BlockingChannel, queue: str) -> None:
    """Uncommitted publishes are dropped with their channel, and uncommitted acks leave the messages ready again."""
    publish(channel, queue, b"first")
    tag = transaction.basic_get(queue)[0].delivery_tag
    transaction.basic_ack(tag)
    transaction.basic_publish("", queue, b"second")
    transaction.close()
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"first", True)
    assert drain(channel, queue) == []


def test_rollback_gives_acknowledged_messages_back(
    transaction: BlockingChannel, channel: BlockingChannel, queue: str
) -> None:
    """A rolled-back ack leaves the message unacked; its tag can be acked again."""
    publish(channel, queue, b"message")
    tag = transaction.basic_get(queue)[0].delivery_tag
    transaction.basic_ack(tag)
    transaction.tx_rollback()
    transaction.basic_ack(tag)
    transaction.tx_commit()
    transaction.basic_recover(requeue=True)
    assert drain(channel, queue) == []


@pytest.mark.parametrize("requeue", [True, False])
def test_rejecting_waits_for_the_commit(
    transaction: BlockingChannel, channel: BlockingChannel, queue: str, requeue: bool
) -> None:
    """A rejected message is requeued, or dropped, at the commit."""
    publish(channel, queue, b"message")
    tag = transaction.basic_get(queue)[0].delivery_tag
    transaction.basic_nack(tag, requeue=requeue)
    assert ready(transaction, queue) == 0
    transaction.tx_commit()
    assert drain(channel, queue) == ([b"message"] if requeue else [])


def test_prefetch_is_given_back_at_the_commit(
    transaction: BlockingChannel, channel: BlockingChannel, queue: str
) -> None:
    """An uncommitted ack gives no credit for the next delivery."""
    publish(channel, queue, b"1", b"2")
    transaction.basic_qos(prefetch_count=1)
    received = Received(transaction, queue)
    received.wait(1)
    transaction.basic_ack(received.tags[0])
    assert received.settle() == [b"1"]
    transaction.tx_commit()
    assert received.wait(2) == [b"1", b"2"]


def test_a_full_queue_refuses_the_commit(
    transaction: BlockingChannel, channel: BlockingChannel, name: str, oracle: bool
) -> None:
    """A full queue that rejects publishes makes the commit fail as a whole; RabbitMQ applies a part of it."""
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for body in (b"1", b"2"):
        transaction.basic_publish("", name, body)
    with channel_closed(406, "PRECONDITION_FAILED - partial tx completion"):
        transaction.tx_commit()
    assert drain(channel, name) == ([b"1"] if oracle else [])


def test_a_commit_survives_kill_9_whole(broker_process: BrokerProcess, name: str) -> None:
    """After commit-ok the publishes and acks are on disk; uncommitted work has no effect."""
    broker_process.start()
    connection = pika.BlockingConnection(parameters(broker_process.address))
    channel = connection.channel()
    for queue in (f"{name}.from", f"{name}.to"):
        channel.queue_declare(queue, durable=True)
    publish(channel, f"{name}.from", b"moved", b"kept", persistent=True)
    transaction = connection.channel()
    transaction.tx_select()
    for moved in (True, False):
        method, _, body = transaction.basic_get(f"{name}.from")
        transaction.basic_publish("", f"{name}.to", body, PERSISTENT)
        transaction.basic_ack(method.delivery_tag)
        if moved:
            transaction.tx_commit()
    broker_process.restart()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(time_limit=None)  # detects that it was disconnected, and frees its sockets
    with pika.BlockingConnection(parameters(broker_process.address)) as again:
        channel = again.channel()
        assert drain(channel, f"{name}.from") == [b"kept"]
        assert drain(channel, f"{name}.to") == [b"moved"]
    assert not broker_process.errors()
