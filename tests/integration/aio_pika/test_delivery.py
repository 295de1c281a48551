"""Messages by aio-pika: publish with confirms, consume, settle, get, iterate."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from tests.broker_process import BrokerAddress
from tests.deadline import DEADLINE_S, wait_until_async


def message(number: int) -> aio_pika.Message:
    """Return a message whose body is a number."""
    return aio_pika.Message(str(number).encode())


async def publish(channel: AbstractChannel, queue: AbstractQueue, count: int) -> None:
    """Publish this many numbered messages to a queue, each confirmed."""
    for number in range(count):
        await channel.default_exchange.publish(message(number), queue.name)


async def take(queue: AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    """Return this many messages from a consumer that is cancelled afterwards; the messages stay unacked."""
    taken: list[AbstractIncomingMessage] = []
    enough = asyncio.Event()

    async def on_message(incoming: AbstractIncomingMessage) -> None:
        taken.append(incoming)
        if len(taken) == count:
            enough.set()

    tag = await queue.consume(on_message)
    async with asyncio.timeout(DEADLINE_S):
        await enough.wait()
    await queue.cancel(tag)
    return taken


async def test_published_and_consumed(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """Messages arrive in order, and acked ones are gone."""
    await publish(channel, queue, 20)
    taken = await take(queue, 20)
    assert [int(incoming.body) for incoming in taken] == list(range(20))
    assert [incoming.delivery_tag for incoming in taken] == list(range(1, 21))
    assert not any(incoming.redelivered for incoming in taken)
    await taken[-1].ack(multiple=True)
    assert await queue.get(fail=False) is None


async def test_properties_arrive(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """Properties and headers of every kind reach the consumer."""
    sent = aio_pika.Message(
        b"body",
        headers={"text": "väl", "number": 1 << 40, "float": 2.5, "list": [1, 2.5, "three"], "table": {"a": {"b": 1}}},
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        message_id="message",
        timestamp=datetime(2024, 2, 29, 12, tzinfo=UTC),
        type="type",
        app_id="application",
    )
    await channel.default_exchange.publish(sent, queue.name)
    got = await queue.get(no_ack=True)
    assert got is not None
    for field in ("body", "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id"):
        assert getattr(got, field) == getattr(sent, field), field
    for field in ("headers", "reply_to", "message_id", "timestamp", "type", "app_id"):
        assert getattr(got, field) == getattr(sent, field), field


async def test_publishers_side_by_side(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """Hundreds of concurrent publishes that wait for their confirms are all delivered, once each."""
    results = await asyncio.gather(
        *(channel.default_exchange.publish(message(number), queue.name) for number in range(500))
    )
    assert all(isinstance(result, Basic.Ack) for result in results)
    taken = await take(queue, 500)
    assert sorted(int(incoming.body) for incoming in taken) == list(range(500))


async def test_unroutable_message_raises(connection: AbstractConnection, name: str) -> None:
    """aio-pika publishes mandatory: a message that matches no queue raises an error that holds the returned message."""
    channel = await connection.channel(on_return_raises=True)
    with pytest.raises(aio_pika.exceptions.PublishError):
        await channel.default_exchange.publish(message(1), name)
    assert not channel.is_closed


async def test_unroutable_message_is_returned_and_confirmed(channel: AbstractChannel, name: str) -> None:
    """Without raising, the returned message is the result of the publish."""
    result = await channel.default_exchange.publish(message(7), name)
    assert isinstance(result, DeliveredMessage)
    assert isinstance(result.delivery, Basic.Return)
    assert (result.body, result.delivery.reply_code, result.delivery.reply_text) == (b"7", 312, "NO_ROUTE")


@pytest.mark.parametrize("how", ["nack", "reject"])
async def test_requeue(channel: AbstractChannel, queue: AbstractQueue, how: str) -> None:
    """A requeued message is delivered first and redelivered; one rejected without requeue is not."""
    await publish(channel, queue, 3)
    first = await queue.get()
    second = await queue.get()
    assert first is not None
    assert second is not None
    if how == "nack":
        await second.nack(requeue=False)
        await first.nack(requeue=True)
    else:
        await second.reject(requeue=False)
        await first.reject(requeue=True)

    async def ready() -> bool:
        return (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 2

    await wait_until_async(ready, "two messages are ready")
    again = await take(queue, 2)
    assert [(int(incoming.body), incoming.redelivered) for incoming in again] == [(0, True), (2, False)]


async def test_process_context_settles(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """`async with message.process(requeue=True)` acks on success and requeues on an error."""
    await publish(channel, queue, 1)
    incoming = await queue.get()
    assert incoming is not None
    with pytest.raises(RuntimeError):
        async with incoming.process(requeue=True):
            raise RuntimeError("worker failed")
    (again,) = await take(queue, 1)
    assert again.redelivered
    async with again.process():
        pass
    assert await queue.get(fail=False) is None


async def test_iterator(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """The queue iterator yields messages in order, with a prefetch, and requeues those that it did not yield."""
    await channel.set_qos(prefetch_count=5)
    await publish(channel, queue, 20)
    seen = []
    async with queue.iterator() as iterator:
        async for incoming in iterator:
            async with incoming.process():
                seen.append(int(incoming.body))
            if len(seen) == 12:
                break
    assert seen == list(range(12))
    await channel.set_qos(prefetch_count=0)
    rest = await take(queue, 8)
    assert [int(incoming.body) for incoming in rest] == list(range(12, 20))


async def test_get_from_an_empty_queue(queue: AbstractQueue) -> None:
    """get raises QueueEmpty, or returns None with fail=False."""
    with pytest.raises(aio_pika.exceptions.QueueEmpty):
        await queue.get()
    assert await queue.get(fail=False) is None


async def test_prefetch(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """A consumer with prefetch holds no more than that until it acks."""
    await channel.set_qos(prefetch_count=4)
    await publish(channel, queue, 10)
    held: list[AbstractIncomingMessage] = []

    async def on_message(incoming: AbstractIncomingMessage) -> None:
        held.append(incoming)

    await queue.consume(on_message)

    async def count() -> int:
        await channel.declare_queue(queue.name, passive=True)
        return len(held)

    async def at(expected: int) -> bool:
        return await count() == expected

    await wait_until_async(lambda: at(4), "four messages")
    assert await count() == 4
    await held[3].ack(multiple=True)
    await wait_until_async(lambda: at(8), "four more")
    assert await count() == 8


@pytest.mark.parametrize("size", [0, 1, 131_064, 1_000_000, 5_000_000])
async def test_bodies_of_any_size(channel: AbstractChannel, queue: AbstractQueue, size: int) -> None:
    """A body of any size arrives intact."""
    body = bytes([size % 251]) * size
    await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
    (incoming,) = await take(queue, 1)
    assert incoming.body == body


async def test_small_frames(broker: BrokerAddress, name: str) -> None:
    """A connection with frame_max 4096 carries bodies of many frames."""
    connection = await aio_pika.connect(f"{broker.url}?frame_max=4096")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, exclusive=True)
        body = bytes(range(256)) * 400
        await channel.default_exchange.publish(aio_pika.Message(body), name)
        (incoming,) = await take(queue, 1)
        assert incoming.body == body


async def test_fan_in_and_out_over_many_channels(connection: AbstractConnection, name: str) -> None:
    """Ten publishers and ten consumers on their own channels exchange a thousand messages, each delivered once."""
    declarer = await connection.channel()
    await declarer.declare_queue(name, exclusive=True)
    seen: list[int] = []

    async def on_message(incoming: AbstractIncomingMessage) -> None:
        seen.append(int(incoming.body))
        await incoming.ack()

    for _ in range(10):
        consumers = await connection.channel()
        await consumers.set_qos(prefetch_count=7)
        await (await consumers.get_queue(name, ensure=False)).consume(on_message)

    async def publisher(first: int) -> None:
        channel = await connection.channel()
        for number in range(first, first + 100):
            await channel.default_exchange.publish(message(number), name)

    await asyncio.gather(*(publisher(first) for first in range(0, 1000, 100)))

    async def all_there() -> bool:
        return len(seen) >= 1000

    await wait_until_async(all_there, "a thousand deliveries")
    assert sorted(seen) == list(range(1000))


async def test_cancelled_consumer_leaves_the_rest(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """After cancel nothing is delivered to the old consumer; a new one gets the following messages."""
    await publish(channel, queue, 1)
    (first,) = await take(queue, 1)
    await first.ack()
    await channel.default_exchange.publish(message(99), queue.name)
    (second,) = await take(queue, 1)
    assert int(second.body) == 99
    assert not second.redelivered
