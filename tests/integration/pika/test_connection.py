"""Connections of pika: by URL alone, many channels, fewer channels, and a hard error of one of them."""

from __future__ import annotations

from collections.abc import Callable

import pika

from tests.broker_process import BrokerAddress
from tests.integration.pika.conversation import connection_closed, drain

Connect = Callable[..., pika.BlockingConnection]


def test_client_by_url_alone(broker: BrokerAddress) -> None:
    """A client needs nothing but a URL."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    assert connection.channel().is_open
    connection.close()


def test_fewer_channels_by_agreement(connect: Connect) -> None:
    """A client may negotiate fewer channels and gets this many."""
    connection = connect(channel_max=4)
    assert connection._impl.params.channel_max == 4
    channels = [connection.channel() for _ in range(4)]
    assert [channel.channel_number for channel in channels] == [1, 2, 3, 4]
    channels[2].close()
    assert connection.channel().channel_number == 3


def test_many_channels(connection: pika.BlockingConnection, name: str) -> None:
    """Hundreds of channels of one connection work side by side."""
    channels = [connection.channel() for _ in range(300)]
    channels[0].queue_declare(name, exclusive=True)
    for number, channel in enumerate(channels):
        channel.basic_publish("", name, str(number).encode())
    for channel in channels:
        channel.close()
    reader = connection.channel()
    assert sorted(drain(reader, name), key=int) == [str(number).encode() for number in range(300)]


def test_hard_error_leaves_other_connections_alone(connect: Connect, name: str) -> None:
    """A hard error closes one connection and leaves the client's other connections open."""
    good, bad = connect(), connect()
    with connection_closed(540, "NOT_IMPLEMENTED - prefetch_size!=0 (7)"):
        bad.channel().basic_qos(prefetch_size=7)
    assert bad.is_closed
    channel = good.channel()
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"works")
    assert drain(channel, name) == [b"works"]
