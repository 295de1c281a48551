"""The publisher and the consumer that use pika. Each function is the main function of one process."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelWrongStateError

from demo.flights import FlightsFile
from demo.inbox import Inbox
from demo.ledger import Address, Ledger
from demo.outbox import Outbox
from demo.plan import EXCHANGE
from demo.window import Window, window_of

PUBLISH_WINDOW = 2_000  # unconfirmed messages


def parameters(address: Address, name: str) -> pika.ConnectionParameters:
    """Return pika's parameters for the broker at the address."""
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        client_properties={"connection_name": name},
    )


class _PikaPublisher:
    """The publisher of one connection: pika's callbacks, an outbox and a window."""

    def __init__(self, address: Address, outbox: Outbox, window: Window, most: int) -> None:
        self._most = most
        self._outbox = outbox
        self._window = window
        self._channel: Any = None
        self.finished = False
        self.error: object = None
        self._connection = pika.SelectConnection(
            parameters(address, "demo publisher (pika)"),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )

    def run(self) -> None:
        """Publish until everything is confirmed or the connection is lost."""
        self._connection.ioloop.start()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        self._outbox.connected(self._window.lost())
        channel.add_on_return_callback(lambda *_: self._outbox.returned())
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._answered, callback=lambda _: self._publish())

    def _publish(self) -> None:
        while len(self._window) < self._most:
            flight = self._outbox.take()
            if flight is None:
                break
            self._window.sent(flight)
            properties = pika.BasicProperties(
                content_type="application/json",
                delivery_mode=pika.DeliveryMode.Persistent.value,
                message_id=str(flight.row),
            )
            self._channel.basic_publish(EXCHANGE, flight.key, flight.body, properties, mandatory=True)
        if not self._window:
            self.finished = True
            self._connection.close()

    def _answered(self, frame: Any) -> None:
        flights = self._window.settle(frame.method.delivery_tag, frame.method.multiple)
        if isinstance(frame.method, pika.spec.Basic.Ack):
            self._outbox.confirmed(flights)
        else:
            self._outbox.refused(flights)
        # Refilling only a half-empty window combines many small writes into long ones.
        if len(self._window) <= self._most // 2:
            self._publish()

    def _channel_closed(self, channel: Any, reason: object) -> None:
        self.error = reason
        if not self.finished and self._connection.is_open:
            self._connection.close()

    def _closed(self, connection: Any, reason: object) -> None:
        self.error = self.error or reason
        connection.ioloop.stop()


def publish_with_pika(
    ledger: Ledger, client: int, address: Address, flights: FlightsFile, first: int, end: int
) -> None:
    """Publish the rows from first up to end, each until it is confirmed.

    Raises: ConnectionUnexpectedlyLost when the connection or the channel closes although the broker was not killed.
    """
    outbox = Outbox(ledger, client, flights.read(first, end))
    window = Window()
    while (generation := ledger.await_broker()) is not None:
        publisher = _PikaPublisher(address, outbox, window, window_of(flights.rows, PUBLISH_WINDOW))
        publisher.run()
        if publisher.finished:
            return
        ledger.lost(generation, publisher.error)


def consume_with_pika(
    ledger: Ledger, client: int, address: Address, queues: Sequence[tuple[int, str]], prefetch: int
) -> None:
    """Consume the queues, each an index and a name, until the run is over.

    Raises: ConnectionUnexpectedlyLost when the connection is lost although the broker was not killed; pika's error when
    the channel is closed.
    """
    inbox = Inbox(ledger, client, [index for index, _ in queues], ack_every=prefetch // 2 or 1)
    while (generation := ledger.await_broker()) is not None:
        try:
            with pika.BlockingConnection(parameters(address, "demo consumer (pika)")) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=prefetch)
                inbox.connected()
                for index, name in queues:
                    channel.basic_consume(name, partial(_delivered, inbox, index))
                while not ledger.stopping:
                    before = inbox.last_tag
                    connection.process_data_events(time_limit=0.1)
                    if inbox.owes_ack and inbox.last_tag == before:  # idle: ack the pending deliveries now
                        _ack(inbox, channel)
        except (AMQPConnectionError, ChannelWrongStateError) as error:
            ledger.lost(generation, error)


def _delivered(inbox: Inbox, index: int, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
    if inbox.take(index, method.delivery_tag, method.redelivered, properties.message_id, method.routing_key, body):
        _ack(inbox, channel)


def _ack(inbox: Inbox, channel: BlockingChannel) -> None:
    channel.basic_ack(inbox.last_tag, multiple=True)
    inbox.acked()
