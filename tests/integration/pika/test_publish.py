"""Publishing with pika: bodies of any size, a large return, and channels that fail."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import Received, channel_closed, drain

Connect = Callable[..., pika.BlockingConnection]

SIZES = [0, 1, 4087, 4088, 4089, 131_063, 131_064, 131_065, 262_128]


@pytest.mark.parametrize(("frame_max", "sizes"), [(4096, SIZES), (131_072, [*SIZES, 1_000_003, 5_000_000])])
def test_bodies_of_any_size(connect: Connect, name: str, frame_max: int, sizes: list[int]) -> None:
    """Bodies of 0 B to 5 MB, around every frame boundary, arrive intact and in order, by consume and by get."""
    channel = connect(frame_max=frame_max).channel()
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    bodies = [bytes([size % 251]) * size for size in sizes]
    for body in bodies:
        channel.basic_publish("", name, body)
    assert [len(body) for body in drain(channel, name)] == sizes
    for body in bodies:
        channel.basic_publish("", name, body)
    received = Received(channel, name, auto_ack=True).wait(len(sizes))
    assert [len(body) for body in received] == sizes
    assert received == bodies


def test_frame_sizes_of_publisher_and_consumer_may_differ(connect: Connect, name: str) -> None:
    """A body that arrived in one connection's frame size is delivered in another's."""
    small, large = connect(frame_max=4096).channel(), connect(frame_max=131_072).channel()
    body = bytes(range(256)) * 1000
    for publisher, consumer in ((small, large), (large, small)):
        consumer.queue_declare(name, exclusive=True)
        publisher.confirm_delivery()
        publisher.basic_publish("", name, body)
        assert drain(consumer, name) == [body]
        consumer.queue_delete(name)


def test_large_mandatory_message_comes_back_whole(channel: BlockingChannel, name: str) -> None:
    """A returned body of several frames is complete."""
    channel.confirm_delivery()
    body = bytes(range(256)) * 2000
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", name, body, mandatory=True)
    assert caught.value.messages[0].body == body


def test_publisher_goes_on_after_a_failed_channel(connection: pika.BlockingConnection, queue: str, name: str) -> None:
    """A channel error closes only its channel: other channels of the connection keep publishing."""
    good, bad = connection.channel(), connection.channel()
    good.confirm_delivery()
    bad.confirm_delivery()
    good.basic_publish("", queue, b"before")
    with channel_closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        bad.basic_publish(name, "", b"x")
    good.basic_publish("", queue, b"after")
    again = connection.channel()
    again.confirm_delivery()
    again.basic_publish("", queue, b"anew")
    assert drain(good, queue) == [b"before", b"after", b"anew"]
