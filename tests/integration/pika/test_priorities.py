"""Priorities of messages and of consumers, and a single active consumer."""

from __future__ import annotations

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import Received, drain, publish, ready


def put(channel: BlockingChannel, body: bytes, priority: int | None) -> None:
    """Publish one message of a priority to the queue q."""
    channel.basic_publish("", "q", body, pika.BasicProperties(priority=priority, delivery_mode=2))


def test_the_highest_priority_comes_first(channel: BlockingChannel) -> None:
    """Messages keep their order within a priority; none means 0, and too high a priority means the queue's highest."""
    channel.queue_declare("q", exclusive=True, arguments={"x-max-priority": 5})
    channel.confirm_delivery()
    for body, priority in ((b"0", 0), (b"3", 3), (b"-", None), (b"9", 9), (b"5", 5), (b"33", 3), (b"1", 1)):
        put(channel, body, priority)
    assert ready(channel, "q") == 7
    assert drain(channel, "q") == [b"9", b"5", b"3", b"33", b"1", b"0", b"-"]


def test_a_queue_without_levels_looks_at_no_priority(channel: BlockingChannel) -> None:
    """A queue without x-max-priority ignores the priority of its messages."""
    channel.queue_declare("q", exclusive=True)
    channel.confirm_delivery()
    put(channel, b"low", 0)
    put(channel, b"high", 9)
    assert drain(channel, "q") == [b"low", b"high"]


def test_what_comes_back_has_its_place_in_its_priority(channel: BlockingChannel) -> None:
    """Requeued messages come before fresh ones of the same level, and after those of higher levels."""
    channel.queue_declare("q", exclusive=True, arguments={"x-max-priority": 2})
    channel.confirm_delivery()
    put(channel, b"low-1", 0)
    put(channel, b"low-2", 0)
    received = Received(channel, "q")
    received.wait(2)
    channel.basic_cancel(received.tag)
    put(channel, b"low-3", 0)
    put(channel, b"high", 2)
    channel.basic_nack(received.tags[-1], multiple=True, requeue=True)
    assert drain(channel, "q") == [b"high", b"low-1", b"low-2", b"low-3"]


def test_a_priority_queue_counts_and_empties_all_its_levels(channel: BlockingChannel) -> None:
    """Purge and delete count the messages of every level."""
    channel.queue_declare("q", arguments={"x-max-priority": 3})
    channel.confirm_delivery()
    for priority in range(4):
        put(channel, b"", priority)
    assert channel.queue_purge("q").method.message_count == 4
    put(channel, b"", 0)
    put(channel, b"", 3)
    assert channel.queue_delete("q").method.message_count == 2


def test_the_head_of_a_full_priority_queue_is_its_highest(channel: BlockingChannel) -> None:
    """x-max-length drops from the head, as RabbitMQ documents it."""
    channel.queue_declare("q", exclusive=True, arguments={"x-max-priority": 2, "x-max-length": 2})
    channel.confirm_delivery()
    for body, priority in ((b"high", 2), (b"low-1", 0), (b"low-2", 0)):
        put(channel, body, priority)
    assert drain(channel, "q") == [b"low-1", b"low-2"]


def test_consumers_of_the_highest_priority_are_served_first(channel: BlockingChannel) -> None:
    """Other consumers get only messages for which the consumers of the highest priority have no credit."""
    channel.queue_declare("q", exclusive=True)
    channel.basic_qos(prefetch_count=2)
    low = Received(channel, "q", arguments={"x-priority": -1})
    high = Received(channel, "q", arguments={"x-priority": 5})
    middle = Received(channel, "q")
    publish(channel, "q", *(b"%d" % number for number in range(5)))
    assert high.wait(2) == [b"0", b"1"]
    assert middle.wait(2) == [b"2", b"3"]
    assert low.wait(1) == [b"4"]


def test_one_consumer_is_active_and_another_follows_it(channel: BlockingChannel) -> None:
    """x-single-active-consumer: the first consumer gets all messages, until it leaves."""
    channel.queue_declare("q", exclusive=True, arguments={"x-single-active-consumer": True})
    first, second = Received(channel, "q", auto_ack=True), Received(channel, "q", auto_ack=True)
    publish(channel, "q", b"1", b"2")
    assert first.wait(2) == [b"1", b"2"]
    assert second.settle() == []
    channel.basic_cancel(first.tag)
    publish(channel, "q", b"3")
    assert second.wait(1) == [b"3"]


def test_a_quorum_queue_goes_to_the_active_consumer_of_the_highest_priority(channel: BlockingChannel) -> None:
    """It takes over when the active one has settled what it holds, and gets what was ready meanwhile."""
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    channel.queue_declare("q-takeover", durable=True, arguments=arguments)
    try:
        publish(channel, "q-takeover", b"1", b"2", persistent=True)
        channel.basic_qos(prefetch_count=1)
        low = Received(channel, "q-takeover")
        assert low.wait(1) == [b"1"]
        high = Received(channel, "q-takeover", auto_ack=True, arguments={"x-priority": 10})
        assert high.settle() == []
        channel.basic_ack(low.tags[0])
        assert high.wait(1) == [b"2"]
        publish(channel, "q-takeover", b"3", persistent=True)
        assert high.wait(2) == [b"2", b"3"]
        assert low.settle() == [b"1"]
    finally:
        channel.queue_delete("q-takeover")
