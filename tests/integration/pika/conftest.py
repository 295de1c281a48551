"""Connections and channels of pika."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerAddress
from tests.integration.pika.conversation import parameters

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def connect(broker: BrokerAddress) -> Iterator[Connect]:
    """Open connections that are closed when the test ends."""
    opened: list[pika.BlockingConnection] = []

    def _connect(**options: Any) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(parameters(broker, **options))
        opened.append(connection)
        return connection

    yield _connect
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: Connect) -> pika.BlockingConnection:
    """Provide an open connection."""
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """Provide an open channel."""
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    """Provide an empty exclusive queue."""
    channel.queue_declare(name, exclusive=True)
    return name
