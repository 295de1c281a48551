"""The clients that use pika, each for one connection, and channels for anybody."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelWrongStateError

from demo.boxes import Inbox, Outbox
from demo.plan import EXCHANGE

PUBLISH_WINDOW = 2_000  # unconfirmed messages


def _parameters(url: str, name: str) -> pika.URLParameters:
    parameters = pika.URLParameters(url)
    parameters.client_properties = {"connection_name": name}
    return parameters


@contextmanager
def channel_to(url: str, name: str = "demo topology") -> Iterator[BlockingChannel]:
    """Yield a channel of a connection of its own."""
    with pika.BlockingConnection(_parameters(url, name)) as connection:
        yield connection.channel()


class _Publisher:
    """The publisher of one connection: pika's callbacks and an outbox."""

    def __init__(self, url: str, outbox: Outbox) -> None:
        self._outbox = outbox
        self._window = outbox.window(PUBLISH_WINDOW)
        self._channel: Any = None
        self.error: object = None
        self.connection = pika.SelectConnection(
            _parameters(url, "demo publisher (pika)"),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        self._outbox.connected()
        channel.add_on_return_callback(lambda *_: self._outbox.returned())
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._answered, callback=lambda _: self._publish())

    def _publish(self) -> None:
        while len(self._outbox) < self._window and (taken := self._outbox.take()) is not None:
            _, (row, key, body) = taken
            properties = pika.BasicProperties("application/json", delivery_mode=2, message_id=str(row))
            self._channel.basic_publish(EXCHANGE, key, body, properties, mandatory=True)
        if not self._outbox:
            self.connection.close()

    def _answered(self, frame: Any) -> None:
        is_ack = isinstance(frame.method, pika.spec.Basic.Ack)
        settle = self._outbox.confirmed if is_ack else self._outbox.refused
        settle(frame.method.delivery_tag, frame.method.multiple)
        # Refilling only a half-empty window combines many small writes into long ones.
        if len(self._outbox) <= self._window // 2:
            self._publish()

    def _channel_closed(self, channel: Any, reason: object) -> None:
        self.error = reason
        if self.connection.is_open:
            self.connection.close()

    def _closed(self, connection: Any, reason: object) -> None:
        self.error = self.error or reason
        connection.ioloop.stop()


def publish_with_pika(url: str, outbox: Outbox) -> object:
    """Publish until every flight is confirmed; return None, or the error that ended the connection before."""
    publisher = _Publisher(url, outbox)
    publisher.connection.ioloop.start()
    return None if outbox.finished else publisher.error


def consume_with_pika(url: str, inbox: Inbox) -> object:
    """Consume until the run is over; return None, or the error that ended the connection before."""
    try:
        with channel_to(url, "demo consumer (pika)") as channel:

            def ack() -> None:
                channel.basic_ack(inbox.last_tag, multiple=True)
                inbox.unacked = 0

            def consume(index: int, name: str) -> None:
                def delivered(_: object, method: Any, properties: Any, body: bytes) -> None:
                    tag, redelivered, key = method.delivery_tag, method.redelivered, method.routing_key
                    if inbox.take(index, tag, redelivered, properties.message_id, key, body):
                        ack()

                channel.basic_consume(name, delivered)

            channel.basic_qos(prefetch_count=inbox.prefetch)
            inbox.connected()
            for index, name in inbox.queues:
                consume(index, name)
            while not inbox.stopping():
                before = inbox.last_tag
                channel.connection.process_data_events(time_limit=0.1)
                if inbox.unacked and inbox.last_tag == before:  # idle: ack the pending deliveries now
                    ack()
    except (AMQPConnectionError, ChannelWrongStateError) as error:
        return error
    return None
