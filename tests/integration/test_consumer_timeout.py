"""The consumer timeout: off by default, and its effect when an operator sets it."""

from __future__ import annotations

from typing import Any

import aio_pika
import aiormq
import pytest

from broker.testing import Broker

TIMEOUT_MS = 60_000


async def holding(broker: Broker) -> tuple[Any, Any]:
    """Return a connection and a channel with an unacked message."""
    connection: Any = await aio_pika.connect(broker.url)
    channel = await connection.channel()
    queue = await channel.declare_queue("q")
    await channel.default_exchange.publish(aio_pika.Message(b"long work"), "q")
    assert await queue.get() is not None
    return connection, channel


async def test_a_delivery_may_stay_unacked_for_ever() -> None:
    """Without a timeout, an unacked delivery of a day leaves its channel open."""
    async with Broker() as broker:
        connection, channel = await holding(broker)
        for _ in range(3):
            broker.clock.advance(86_400)
            broker.server.listener.tick()
        await channel.declare_queue("q", passive=True)
        assert broker.queue("q").unacked == 1
        await connection.close()


async def test_an_overdue_delivery_closes_its_channel() -> None:
    """With a timeout the channel is closed as RabbitMQ does, and the message is ready again; others stay open."""
    async with Broker(amqp={"consumer_timeout_ms": TIMEOUT_MS}) as broker:
        connection, channel = await holding(broker)
        other = await connection.channel()
        broker.server.listener.tick()  # finds the delivery
        broker.clock.advance(TIMEOUT_MS / 1000 - 1)
        broker.server.listener.tick()
        await channel.declare_queue("q", passive=True)
        broker.clock.advance(1)
        broker.server.listener.tick()
        with pytest.raises((aiormq.exceptions.ChannelPreconditionFailed, aio_pika.exceptions.ChannelInvalidStateError)):
            await channel.declare_queue("q", passive=True)
        await other.declare_queue("q", passive=True)
        assert (broker.queue("q").ready, broker.queue("q").unacked) == (1, 0)
        await connection.close()


async def test_what_was_acked_in_time_starts_no_timeout() -> None:
    """Each delivery has its own timeout: an old channel that acks stays open."""
    async with Broker(amqp={"consumer_timeout_ms": TIMEOUT_MS}) as broker:
        connection: Any = await aio_pika.connect(broker.url)
        channel = await connection.channel()
        queue = await channel.declare_queue("q")
        for _ in range(5):
            await channel.default_exchange.publish(aio_pika.Message(b"work"), "q")
            message = await queue.get()
            broker.server.listener.tick()
            broker.clock.advance(TIMEOUT_MS / 1000 - 1)
            broker.server.listener.tick()
            await message.ack()
        await channel.declare_queue("q", passive=True)
        await connection.close()
