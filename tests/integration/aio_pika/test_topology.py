"""Exchanges, queues and bindings with aio-pika, and the exceptions that refusals raise."""

from __future__ import annotations

from typing import Any

import aio_pika
import pytest
from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq.abc import DeliveredMessage

from tests.broker_process import BrokerAddress
from tests.deadline import wait_until_async


async def bodies(queue: AbstractQueue) -> list[bytes]:
    """Fetch everything ready from a queue."""
    taken = []
    while (incoming := await queue.get(no_ack=True, fail=False)) is not None:
        taken.append(incoming.body)
    return taken


async def test_topic_exchange(channel: AbstractChannel, name: str) -> None:
    """Patterns with literal words, stars and hashes each get the matching messages."""
    exchange = await channel.declare_exchange(name, ExchangeType.TOPIC, auto_delete=True)
    patterns = ["flight.UA.*.late", "flight.#", "#.late", "flight.*.JFK.#", "*", "#"]
    keys = ["flight.UA.JFK.late", "flight.UA.late", "flight", "boat.late", "flight.AA.JFK"]
    queues = {}
    for pattern in patterns:
        queues[pattern] = await channel.declare_queue(exclusive=True)
        await queues[pattern].bind(exchange, pattern)
    for key in keys:
        await exchange.publish(aio_pika.Message(key.encode()), key)
    assert {pattern: await bodies(queue) for pattern, queue in queues.items()} == {
        "flight.UA.*.late": [b"flight.UA.JFK.late"],
        "flight.#": [b"flight.UA.JFK.late", b"flight.UA.late", b"flight", b"flight.AA.JFK"],
        "#.late": [b"flight.UA.JFK.late", b"flight.UA.late", b"boat.late"],
        "flight.*.JFK.#": [b"flight.UA.JFK.late", b"flight.AA.JFK"],
        "*": [b"flight"],
        "#": [key.encode() for key in keys],
    }


@pytest.mark.parametrize("kind", [ExchangeType.DIRECT, ExchangeType.FANOUT, ExchangeType.TOPIC, ExchangeType.HEADERS])
async def test_bind_and_unbind(channel: AbstractChannel, queue: AbstractQueue, name: str, kind: ExchangeType) -> None:
    """Every type of exchange delivers while bound and returns the message when not."""
    exchange = await channel.declare_exchange(f"{name}.x", kind)
    arguments: Any = {"x-match": "all", "a": 1} if kind is ExchangeType.HEADERS else None
    message = aio_pika.Message(b"hit", headers={"a": 1})
    await queue.bind(exchange, "key", arguments=arguments)
    await exchange.publish(message, "key")
    assert await bodies(queue) == [b"hit"]
    await queue.unbind(exchange, "key", arguments=arguments)
    result = await exchange.publish(message, "key")
    assert isinstance(result, DeliveredMessage)
    assert await bodies(queue) == []
    await exchange.delete()


async def test_missing_queue(connection: AbstractConnection, name: str) -> None:
    """A passive declare of a missing queue raises ChannelNotFoundEntity; the connection stays open."""
    channel = await connection.channel()
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity, match=f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        await channel.get_queue(name)
    assert not connection.is_closed
    other = await connection.channel()
    await other.declare_queue(name, exclusive=True)


async def test_missing_exchange(connection: AbstractConnection, name: str) -> None:
    """A passive declare of a missing exchange raises ChannelNotFoundEntity."""
    channel = await connection.channel()
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity, match=f"no exchange '{name}' in vhost '/'"):
        await channel.get_exchange(name)


async def test_publish_to_a_missing_exchange(connection: AbstractConnection, name: str) -> None:
    """A confirmed publish to a missing exchange raises an error and closes only its channel."""
    channel = await connection.channel()
    exchange = await channel.get_exchange(name, ensure=False)
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity, match=f"no exchange '{name}' in vhost '/'"):
        await exchange.publish(aio_pika.Message(b"lost"), "key")
    assert not connection.is_closed


async def test_other_properties(connection: AbstractConnection, name: str) -> None:
    """Declaring a queue with other properties raises ChannelPreconditionFailed with RabbitMQ's text."""
    channel = await connection.channel()
    await channel.declare_queue(name, auto_delete=True)
    with pytest.raises(
        aio_pika.exceptions.ChannelPreconditionFailed,
        match=f"inequivalent arg 'durable' for queue '{name}' in vhost '/': received 'true' but current is 'false'",
    ):
        await channel.declare_queue(name, auto_delete=True, durable=True)
    await (await connection.channel()).queue_delete(name)


async def test_exclusive_queue(broker: BrokerAddress, queue: AbstractQueue) -> None:
    """A connection that declares another connection's exclusive queue gets the channel error 405."""
    async with await aio_pika.connect(broker.url) as other:
        channel = await other.channel()
        with pytest.raises(aio_pika.exceptions.ChannelClosed) as caught:
            await channel.declare_queue(queue.name, passive=True)
        assert "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue" in str(caught.value)
        assert not other.is_closed


async def test_purge_and_delete(channel: AbstractChannel, name: str) -> None:
    """purge and delete count the ready messages they drop."""
    queue = await channel.declare_queue(name)
    for _ in range(3):
        await channel.default_exchange.publish(aio_pika.Message(b"x"), name)
    assert (await queue.purge()).message_count == 3
    for _ in range(2):
        await channel.default_exchange.publish(aio_pika.Message(b"x"), name)
    assert (await queue.delete(if_empty=False)).message_count == 2


async def test_delete_of_a_full_queue_is_refused(connection: AbstractConnection, queue: AbstractQueue) -> None:
    """aio-pika deletes if-empty by default: a queue with a message is kept."""
    channel = await connection.channel()
    await channel.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
    with pytest.raises(
        aio_pika.exceptions.ChannelPreconditionFailed, match=f"queue '{queue.name}' in vhost '/' not empty"
    ):
        await queue.delete()


async def test_wrong_password(broker: BrokerAddress) -> None:
    """A wrong password raises aio-pika's own authentication error."""
    url = f"amqp://guest:wrong@{broker.host}:{broker.port}/"
    with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
        await aio_pika.connect(url)


async def test_unknown_virtual_host(broker: BrokerAddress) -> None:
    """An unknown virtual host is refused (aiormq drops the broker's text; pika's test checks it)."""
    url = f"amqp://guest:guest@{broker.host}:{broker.port}/nowhere"
    with pytest.raises(aio_pika.exceptions.AMQPError):
        await aio_pika.connect(url)


async def test_deleted_queue_cancels_its_consumers(connection: AbstractConnection, name: str) -> None:
    """A consumer whose queue is deleted is cancelled by the broker; its channel stays open."""
    channel, other = await connection.channel(), await connection.channel()
    queue = await channel.declare_queue(name, exclusive=True)
    underlay: Any = await channel.get_underlay_channel()

    async def on_message(_incoming: AbstractIncomingMessage) -> None:
        raise AssertionError("nothing was published")

    tag = await queue.consume(on_message)
    assert tag in underlay.consumers
    await other.queue_delete(name)

    async def told() -> bool:
        return tag not in underlay.consumers

    await wait_until_async(told, "basic.cancel from the broker")
    assert not channel.is_closed
