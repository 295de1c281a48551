"""Queues with a limit on length or bytes, and the fate of messages that do not fit."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.deadline import wait_until
from tests.integration.pika.conversation import Received, drain, publish, ready


def declare(channel: BlockingChannel, queue: str = "q", **arguments: Any) -> str:
    """Declare an exclusive queue with x- arguments, written with underscores."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(queue, exclusive=True, arguments=named)
    return queue


def test_the_oldest_goes_when_a_queue_is_full(channel: BlockingChannel) -> None:
    """drop-head is the default overflow, and happens before the confirm."""
    declare(channel, max_length=2)
    publish(channel, "q", b"1", b"2", b"3", b"4")
    assert ready(channel, "q") == 2
    assert drain(channel, "q") == [b"3", b"4"]


def test_bodies_count_for_the_limit_in_bytes(channel: BlockingChannel) -> None:
    """A queue drops as many of its oldest messages as needed for the newest to fit."""
    declare(channel, max_length_bytes=10)
    publish(channel, "q", b"aaaa", b"bbbb", b"cc")
    assert ready(channel, "q") == 3
    publish(channel, "q", b"ddddddd")
    assert drain(channel, "q") == [b"cc", b"ddddddd"]


def test_a_message_larger_than_the_queue_empties_it(channel: BlockingChannel) -> None:
    """A message that alone exceeds the limit is dropped too."""
    declare(channel, max_length_bytes=10)
    publish(channel, "q", b"a", b"b" * 11)
    assert ready(channel, "q") == 0


def test_a_limit_of_nothing_leaves_room_for_who_waits(channel: BlockingChannel) -> None:
    """With x-max-length 0 a message is delivered at once, or dropped."""
    declare(channel, max_length=0)
    publish(channel, "q", b"lost")
    received = Received(channel, "q", auto_ack=True)
    publish(channel, "q", b"taken")
    assert received.wait(1) == [b"taken"]


def test_unacked_messages_do_not_count(channel: BlockingChannel) -> None:
    """The limit counts ready messages; a requeued message may exceed it, and then the head is dropped."""
    declare(channel, max_length=1)
    received = Received(channel, "q")
    publish(channel, "q", b"1")
    received.wait(1)
    channel.basic_cancel(received.tag)
    publish(channel, "q", b"2")
    wait_until(lambda: ready(channel, "q") == 1, "the second message")  # of a cluster, whose counts follow
    channel.basic_nack(received.tags[0], requeue=True)
    assert drain(channel, "q") == [b"2"]


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_a_full_queue_may_refuse(channel: BlockingChannel, limit: dict[str, Any]) -> None:
    """reject-publish: a publisher with confirms gets a nack, and the queue keeps its messages."""
    declare(channel, overflow="reject-publish", **limit)
    publish(channel, "q", b"1", b"2")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "q", b"3")
    assert drain(channel, "q") == [b"1", b"2"]
    channel.basic_publish("", "q", b"4")
    assert drain(channel, "q") == [b"4"]


def test_one_queue_that_refuses_does_not_keep_the_others(channel: BlockingChannel) -> None:
    """A message for two queues is nacked when one is full; the other queue still gets it."""
    declare(channel, "full", max_length=0, overflow="reject-publish")
    declare(channel, "free")
    for queue in ("full", "free"):
        channel.queue_bind(queue, "amq.fanout")
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("amq.fanout", "", b"1")
    assert drain(channel, "free") == [b"1"]


def test_a_consumer_that_waits_leaves_room(channel: BlockingChannel) -> None:
    """Consumers with credit receive messages before a publisher gets a nack for lack of space."""
    declare(channel, max_length=1, overflow="reject-publish")
    received = Received(channel, "q", auto_ack=True)
    publish(channel, "q", *(b"%d" % number for number in range(20)))
    assert received.wait(20) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish-dlx"])
def test_what_does_not_fit_can_be_dead_lettered(channel: BlockingChannel, overflow: str) -> None:
    """A dropped head, or a rejected newest message, goes to the dead-letter exchange with reason maxlen."""
    declare(channel, "dead")
    declare(channel, max_length=1, overflow=overflow, dead_letter_exchange="", dead_letter_routing_key="dead")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"1")
    try:
        channel.basic_publish("", "q", b"2")
    except pika.exceptions.NackError:
        assert overflow == "reject-publish-dlx"
    wait_until(lambda: ready(channel, "dead"), "the dead letter")
    _, properties, body = channel.basic_get("dead", auto_ack=True)
    assert body == (b"1" if overflow == "drop-head" else b"2")
    assert properties is not None
    assert [(death["reason"], death["queue"]) for death in properties.headers["x-death"]] == [("maxlen", "q")]
    assert drain(channel, "q") == [b"2" if overflow == "drop-head" else b"1"]
