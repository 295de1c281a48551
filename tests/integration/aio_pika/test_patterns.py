"""Common patterns with aio-pika: remote calls, work queues, pools, connections that reconnect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aio_pika.patterns import Master
from aio_pika.pool import Pool

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import DEADLINE_S


async def test_remote_calls(connection: AbstractConnection, name: str) -> None:
    """Calls with reply queue and correlation id, fifty at once, each get their own answer."""
    channel = await connection.channel()
    calls = await channel.declare_queue(name, exclusive=True)
    replies = await channel.declare_queue(exclusive=True)
    waiting: dict[str, asyncio.Future[int]] = {}

    async def serve(incoming: AbstractIncomingMessage) -> None:
        async with incoming.process():
            assert incoming.reply_to is not None
            answer = aio_pika.Message(str(int(incoming.body) ** 2).encode(), correlation_id=incoming.correlation_id)
            await channel.default_exchange.publish(answer, incoming.reply_to)

    async def on_reply(incoming: AbstractIncomingMessage) -> None:
        waiting.pop(str(incoming.correlation_id)).set_result(int(incoming.body))

    async def call(number: int) -> int:
        waiting[str(number)] = asyncio.get_running_loop().create_future()
        request = aio_pika.Message(str(number).encode(), correlation_id=str(number), reply_to=replies.name)
        answer = waiting[str(number)]
        await channel.default_exchange.publish(request, name)
        return await answer

    await calls.consume(serve)
    await replies.consume(on_reply, no_ack=True)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*map(call, range(50))) == [number**2 for number in range(50)]


async def test_work_queue(connection: AbstractConnection, name: str) -> None:
    """aio-pika's master and workers share tasks, each done once."""
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=1)
    done: list[int] = []
    everything = asyncio.Event()

    async def work(*, task: int) -> None:
        done.append(task)
        if len(done) == 30:
            everything.set()

    master = Master(channel)
    workers = [await master.create_worker(name, work, auto_delete=True) for _ in range(3)]
    for task in range(30):
        await master.create_task(name, {"task": task})
    async with asyncio.timeout(DEADLINE_S):
        await everything.wait()
    assert sorted(done) == list(range(30))
    for worker in workers:
        await worker.close()


async def test_pool_of_connections(broker: BrokerAddress, name: str) -> None:
    """A pool of connections and channels publishes from many tasks to one durable queue."""

    async def connect() -> AbstractConnection:
        return await aio_pika.connect(broker.url)

    async with Pool(connect, max_size=3) as connections:

        async def open_channel() -> AbstractChannel:
            connection: AbstractConnection
            async with connections.acquire() as connection:
                return await connection.channel()

        async with Pool(open_channel, max_size=8) as channels:
            async with channels.acquire() as channel:
                await channel.declare_queue(name, durable=True)

            async def publish(number: int) -> None:
                async with channels.acquire() as channel:
                    body = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                    await channel.default_exchange.publish(body, name)

            await asyncio.gather(*(publish(number) for number in range(200)))
            async with channels.acquire() as channel:
                queue = await channel.declare_queue(name, durable=True, passive=True)
                assert queue.declaration_result.message_count == 200
                await queue.delete(if_empty=False)


async def test_robust_connection_survives_a_killed_broker(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """A robust connection reconnects after kill -9 and restart, redeclares its topology and continues to consume."""
    port = broker_process.start().address.port
    connection = await aio_pika.connect_robust(broker_process.address.url, reconnect_interval=0.1)
    async with connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("robust", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue("robust", durable=True)
        await queue.bind(exchange, "#")
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(incoming: AbstractIncomingMessage) -> None:
            await incoming.ack()
            got.put_nowait(incoming.body)

        await queue.consume(on_message)
        persistent = aio_pika.DeliveryMode.PERSISTENT
        await exchange.publish(aio_pika.Message(b"before", delivery_mode=persistent), "key")
        async with asyncio.timeout(DEADLINE_S):
            assert await got.get() == b"before"
        await asyncio.to_thread(broker_process.kill)
        await asyncio.to_thread(broker_process.start, "--port", str(port))
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await connection.ready()
                    await exchange.publish(aio_pika.Message(b"after", delivery_mode=persistent), "key")
                    break
                except (aio_pika.exceptions.AMQPError, ConnectionError, RuntimeError):
                    await asyncio.sleep(0.1)
            while await got.get() != b"after":
                pass
