"""Connections and channels of aio-pika."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractQueue

from tests.broker_process import BrokerAddress


@pytest.fixture
async def connection(broker: BrokerAddress) -> AsyncIterator[AbstractConnection]:
    """Provide an open connection."""
    connection = await aio_pika.connect(broker.url)
    yield connection
    await connection.close()


@pytest.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    """Provide an open channel with publisher confirms."""
    return await connection.channel()


@pytest.fixture
async def queue(channel: AbstractChannel, name: str) -> AbstractQueue:
    """Provide an empty exclusive queue."""
    return await channel.declare_queue(name, exclusive=True)
