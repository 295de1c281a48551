"""Publishing: bodies, properties, mandatory, immediate, confirms."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import Received, channel_closed, connection_closed, drain

Connect = Callable[..., pika.BlockingConnection]

EVERY_PROPERTY: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {
        "text": "väl",
        "bytes": b"\x00\xff",
        "small": 1,
        "large": 1 << 40,
        "negative": -7,
        "truth": True,
        "nothing": None,
        "decimal": Decimal("3.14"),
        "list": [1, "two", [True]],
        "table": {"nested": {"deeper": "yes"}},
    },
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "reply queue",
    "message_id": "message",
    "timestamp": 1_700_000_000,
    "type": "type",
    "app_id": "application",
    "cluster_id": "cluster",
}


def test_every_property_arrives_as_sent(channel: BlockingChannel, queue: str) -> None:
    """The properties and every type of header value reach the consumer unchanged."""
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"body", pika.BasicProperties(**EVERY_PROPERTY))
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"body"
    assert {field: getattr(properties, field) for field in EVERY_PROPERTY} == EVERY_PROPERTY


def test_absent_properties_stay_absent(channel: BlockingChannel, queue: str) -> None:
    """The broker adds no properties."""
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"bare")
    _, properties, _ = channel.basic_get(queue, auto_ack=True)
    assert {field: getattr(properties, field) for field in EVERY_PROPERTY} == dict.fromkeys(EVERY_PROPERTY)


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


def test_unroutable_message_is_confirmed(channel: BlockingChannel, name: str) -> None:
    """A message without mandatory that matches no queue is dropped and confirmed."""
    channel.confirm_delivery()
    channel.basic_publish("", name, b"nobody")
    channel.basic_publish("amq.topic", name, b"nobody")


def test_mandatory_message_without_queue_comes_back(channel: BlockingChannel, name: str) -> None:
    """A mandatory message that matches no queue is returned with 312, key, exchange, properties and body."""
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("amq.direct", name, b"returned", pika.BasicProperties(message_id="id"), mandatory=True)
    (returned,) = caught.value.messages
    method = returned.method
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("amq.direct", name)
    assert (returned.properties.message_id, returned.body) == ("id", b"returned")


def test_mandatory_message_with_a_queue_arrives(channel: BlockingChannel, queue: str) -> None:
    """A mandatory message that matches a queue is not returned."""
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"routed", mandatory=True)
    assert drain(channel, queue) == [b"routed"]


def test_large_mandatory_message_comes_back_whole(channel: BlockingChannel, name: str) -> None:
    """A returned body of several frames is complete."""
    channel.confirm_delivery()
    body = bytes(range(256)) * 2000
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", name, body, mandatory=True)
    assert caught.value.messages[0].body == body


def test_mandatory_returns_without_confirms(connection: pika.BlockingConnection, name: str) -> None:
    """A channel without confirms gets returned messages too."""
    channel = connection.channel()
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    channel.basic_publish("", name, b"back", mandatory=True)
    channel.queue_declare(name, exclusive=True)
    connection.process_data_events(time_limit=0)
    assert returned == [b"back"]


def test_immediate_is_not_implemented(channel: BlockingChannel, queue: str) -> None:
    """immediate, which RabbitMQ removed, closes the connection with 540."""
    channel.confirm_delivery()
    channel._impl._send_method(
        pika.spec.Basic.Publish(exchange="", routing_key=queue, immediate=True), (pika.BasicProperties(), b"now")
    )
    with connection_closed(540, "NOT_IMPLEMENTED - immediate=true"):
        drain(channel, queue)


def test_confirm_select_twice_is_allowed(connection: pika.BlockingConnection, queue: str) -> None:
    """A second confirm.select is answered and does not restart the count."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    channel._delivery_confirmation = False
    channel.confirm_delivery()
    channel._delivery_confirmation = True
    assert drain(channel, queue) == [b"1"]


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
