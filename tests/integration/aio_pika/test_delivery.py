"""Messages by aio-pika: publish with confirms, consume, settle, get, iterate."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

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


async def test_publishers_side_by_side(channel: AbstractChannel, queue: AbstractQueue) -> None:
    """Hundreds of concurrent publishes that wait for their confirms are all delivered, once each."""
    results = await asyncio.gather(
        *(channel.default_exchange.publish(message(number), queue.name) for number in range(500))
    )
    assert all(isinstance(result, Basic.Ack) for result in results)
    taken = await take(queue, 500)
    assert sorted(int(incoming.body) for incoming in taken) == list(range(500))


async def test_unroutable_message_is_returned_and_confirmed(channel: AbstractChannel, name: str) -> None:
    """Without raising, the returned message is the result of the publish."""
    result = await channel.default_exchange.publish(message(7), name)
    assert isinstance(result, DeliveredMessage)
    assert isinstance(result.delivery, Basic.Return)
    assert (result.body, result.delivery.reply_code, result.delivery.reply_text) == (b"7", 312, "NO_ROUTE")


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
    await wait_until_async(lambda: len(seen) >= 1000, "a thousand deliveries")
    assert sorted(seen) == list(range(1000))
