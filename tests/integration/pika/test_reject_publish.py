"""reject-publish with pika: a publisher learns that its message was rejected."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import drain


@pytest.fixture
def full(channel: BlockingChannel, name: str) -> str:
    """Provide a queue of length 1 with one message in it, on a channel with confirms."""
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"first")
    return name


@pytest.mark.parametrize("mode", [1, 2])
def test_a_full_queue_nacks(channel: BlockingChannel, full: str, mode: int) -> None:
    """A publish to a full queue is nacked and dropped; there is space again after a message was consumed."""
    for _ in range(2):
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", full, b"refused", pika.BasicProperties(delivery_mode=mode))
    assert drain(channel, full) == [b"first"]
    channel.basic_publish("", full, b"second", pika.BasicProperties(delivery_mode=mode))
    assert drain(channel, full) == [b"second"]


def test_a_full_queue_among_others(channel: BlockingChannel, full: str, name: str) -> None:
    """In a fan-out the other queues get the message, and the publisher a nack."""
    channel.queue_declare(f"{name}.other", exclusive=True)
    channel.exchange_declare(name, "fanout", auto_delete=True)
    for queue in (full, f"{name}.other"):
        channel.queue_bind(queue, name)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish(name, "", b"body", mandatory=True)
    assert drain(channel, f"{name}.other") == [b"body"]
    assert drain(channel, full) == [b"first"]


def test_publishing_goes_on(channel: BlockingChannel, full: str, name: str) -> None:
    """A nack closes nothing: other publishes of the channel are confirmed."""
    channel.queue_declare(f"{name}.other", exclusive=True)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", full, b"refused")
    channel.basic_publish("", f"{name}.other", b"body")
    assert drain(channel, f"{name}.other") == [b"body"]
