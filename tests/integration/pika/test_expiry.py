"""Messages and queues that expire."""

from __future__ import annotations

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.deadline import wait_until
from tests.integration.pika.conversation import Received, channel_closed, drain, publish, ready

SHORT_MS = 50


def wait_until_empty(channel: BlockingChannel, queue: str) -> None:
    """Return once no message of the queue is ready; the test does nothing to empty it."""
    wait_until(lambda: ready(channel, queue) == 0, "the end of the messages")


def put(channel: BlockingChannel, queue: str, body: bytes, expiration: str | None = None) -> None:
    """Publish one message with its own expiration."""
    channel.basic_publish("", queue, body, pika.BasicProperties(expiration=expiration))


def test_messages_expire_with_the_queues_ttl(channel: BlockingChannel) -> None:
    """x-message-ttl: messages that are not consumed in time are removed without a request."""
    channel.queue_declare("q", exclusive=True, arguments={"x-message-ttl": SHORT_MS})
    publish(channel, "q", b"1", b"2", b"3")
    wait_until_empty(channel, "q")


def test_a_message_expires_with_its_own_ttl(channel: BlockingChannel) -> None:
    """The property expiration is text; the next message has none and stays."""
    channel.queue_declare("q", exclusive=True)
    channel.confirm_delivery()
    put(channel, "q", b"short", str(SHORT_MS))
    put(channel, "q", b"stays")
    wait_until(lambda: ready(channel, "q") == 1, "the end of the first")
    assert drain(channel, "q") == [b"stays"]


def test_the_shorter_of_the_two_holds(channel: BlockingChannel) -> None:
    """A message expires by the shorter of its own TTL and the queue's."""
    channel.queue_declare("short", exclusive=True, arguments={"x-message-ttl": SHORT_MS})
    channel.queue_declare("long", exclusive=True, arguments={"x-message-ttl": 600_000})
    channel.confirm_delivery()
    put(channel, "short", b"1", "600000")
    put(channel, "long", b"1", str(SHORT_MS))
    wait_until_empty(channel, "short")
    wait_until_empty(channel, "long")


def test_a_message_expires_at_the_head_only(channel: BlockingChannel) -> None:
    """An expired message after one that stays is still counted, and is removed when it reaches the head."""
    channel.queue_declare("q", exclusive=True)
    channel.confirm_delivery()
    put(channel, "q", b"stays")
    put(channel, "q", b"expires", "1")
    put(channel, "q", b"last")
    channel.connection.sleep(0.05)
    assert ready(channel, "q") == 3
    assert drain(channel, "q") == [b"stays", b"last"]


def test_a_ttl_of_nothing_needs_somebody_who_waits(channel: BlockingChannel) -> None:
    """With expiration 0 a message is delivered at once or never."""
    channel.queue_declare("q", exclusive=True)
    channel.confirm_delivery()
    put(channel, "q", b"nobody", "0")
    assert ready(channel, "q") == 0
    received = Received(channel, "q", auto_ack=True)
    put(channel, "q", b"somebody", "0")
    assert received.wait(1) == [b"somebody"]


def test_what_was_delivered_in_time_does_not_expire(channel: BlockingChannel) -> None:
    """An unacked message stays, however long it takes; requeued, it expires."""
    channel.queue_declare("q", exclusive=True, arguments={"x-message-ttl": SHORT_MS})
    received = Received(channel, "q")
    publish(channel, "q", b"1")
    received.wait(1)
    channel.basic_cancel(received.tag)
    channel.connection.sleep(2 * SHORT_MS / 1000)
    channel.basic_nack(received.tags[0], requeue=True)
    wait_until_empty(channel, "q")


def test_a_queue_that_nobody_uses_expires(channel: BlockingChannel, connect: Any) -> None:
    """x-expires removes an unused queue; a consumer keeps it, and so does basic.get."""
    channel.queue_declare("kept", arguments={"x-expires": 300})
    channel.queue_declare("gone", arguments={"x-expires": SHORT_MS})
    received = Received(channel, "kept")
    channel.connection.sleep(0.5)
    channel.queue_declare("kept", passive=True)
    with channel_closed(404, "NOT_FOUND - no queue 'gone' in vhost '/'"):
        channel.queue_declare("gone", passive=True)
    assert received.bodies == []
    connect().channel().queue_delete("kept")
