"""Operations shared by the pika tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerAddress


def parameters(address: BrokerAddress, **options: Any) -> pika.ConnectionParameters:
    """Return connection parameters for the broker at `address`."""
    credentials = options.pop("credentials", pika.PlainCredentials(address.user, address.password))
    settings: dict[str, Any] = {"heartbeat": 0, "blocked_connection_timeout": 60, "stack_timeout": 60}
    return pika.ConnectionParameters(address.host, address.port, credentials=credentials, **(settings | options))


def cut(text: str) -> str:
    """Return a reply text as a short string: RabbitMQ cuts one over 255 bytes at 252 and appends dots."""
    encoded = text.encode()
    return text if len(encoded) <= 255 else encoded[:252].decode() + "..."


@contextmanager
def channel_closed(code: int, text: str) -> Iterator[None]:
    """Expect the broker to close the channel with this code and text."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, cut(text))


@contextmanager
def connection_closed(code: int, text: str) -> Iterator[None]:
    """Expect the broker to close the connection with this code and text."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, cut(text))


@contextmanager
def channel_of(address: BrokerAddress) -> Iterator[BlockingChannel]:
    """Open a channel with confirms."""
    with pika.BlockingConnection(parameters(address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def publish(channel: BlockingChannel, queue: str, *bodies: bytes, persistent: bool = False) -> None:
    """Publish bodies to a queue through the default exchange, and wait for the confirms."""
    if not channel._delivery_confirmation:
        channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2 if persistent else 1)
    for body in bodies:
        channel.basic_publish("", queue, body, properties)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Get all ready messages of a queue, and return their bodies in order."""
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2])
    return bodies


def ready(channel: BlockingChannel, queue: str) -> int:
    """Return the number of ready messages of a queue."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


class Received:
    """The messages that a consumer received, in order."""

    def __init__(self, channel: BlockingChannel, queue: str, *, auto_ack: bool = False, **options: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.bodies: list[bytes] = []
        self.tags: list[int] = []
        self.redelivered: list[bool] = []
        self.keys: list[str] = []
        self.tag: str = channel.basic_consume(queue, self._record, auto_ack=auto_ack, **options)

    def _record(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        self.bodies.append(body)
        self.tags.append(method.delivery_tag)
        self.redelivered.append(method.redelivered)
        self.keys.append(method.routing_key)

    def wait(self, count: int) -> list[bytes]:
        """Return the bodies once `count` of them have arrived."""
        for _ in range(3000):
            if len(self.bodies) >= count:
                break
            self.channel.connection.process_data_events(time_limit=0.01)
        assert len(self.bodies) == count, f"expected {count} deliveries, got {self.bodies}"
        return self.bodies

    def settle(self) -> list[bytes]:
        """Return the bodies after all deliveries that the broker sent before this call have arrived."""
        # Round trips on the channel and queue: earlier deliveries arrive before the answer. A delivery that the broker
        # must not make could follow the first answer; the second round trip would show it, without a sleep.
        for _ in range(2):
            self.channel.queue_declare(self.queue, passive=True)
        self.channel.connection.process_data_events(time_limit=0)
        return self.bodies
