"""A paused queue delivers nothing and takes everything, until it is resumed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.administration.definitions import PAUSED_QUEUE
from broker.cli.control_client import Unanswered
from broker.cli.main import main
from broker.server import BrokerServer
from broker.testing import Broker
from tests.in_process import client_of, queue_of, running_broker, timed_broker, told


async def run(broker: BrokerServer, *words: str) -> int:
    """Run a command and return its exit code."""
    return await asyncio.to_thread(main, [*words, "--data-dir", str(broker.settings.server.data_dir)])


async def publish(channel: Any, *bodies: str) -> None:
    """Publish persistent messages to the queue q, with confirms."""
    for body in bodies:
        await channel.default_exchange.publish(aio_pika.Message(body.encode(), delivery_mode=2), "q")


async def collect(channel: Any) -> list[str]:
    """Consume from the queue q, and return the list to which what comes is added."""
    received: list[str] = []

    async def take(message: Any) -> None:
        received.append(message.body.decode())
        await message.ack()

    await (await channel.get_queue("q")).consume(take)
    return received


async def pause(broker: Broker) -> None:
    """Pause the queue "q"."""
    await broker.server.administration.change(lambda draft: draft.set_parameter(("/", PAUSED_QUEUE, "q"), {}))


async def resume(broker: Broker) -> None:
    """Resume the queue "q"."""
    await broker.server.administration.change(lambda draft: draft.drop_parameter(("/", PAUSED_QUEUE, "q")))


@pytest.mark.parametrize("single_active", [False, True], ids=["shared", "single active"])
async def test_nothing_is_delivered_before_the_queue_is_resumed(tmp_path: Path, single_active: bool) -> None:
    """Publishes, acks and purges continue; then consumers get the rest, in order, the active consumer first."""
    async with timed_broker(tmp_path) as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q", durable=True, arguments={"x-single-active-consumer": single_active})
        first, second = await collect(channel), await collect(channel)
        await publish(channel, "before")
        await broker.idle()
        assert first + second == ["before"]
        await pause(broker)
        await publish(channel, "a", "b", "c")
        await broker.idle()
        assert first + second == ["before"]
        assert (broker.queue("q").ready, broker.queue("q").unacked) == (3, 0)
        assert await (await channel.get_queue("q")).get(fail=False) is None
        await broker.idle()
        await resume(broker)
        await broker.idle()
        assert sorted(first + second) == ["a", "b", "before", "c"]
        if single_active:
            assert first == ["before", "a", "b", "c"]


async def test_what_returns_to_a_paused_queue_stays_there(tmp_path: Path) -> None:
    """A message that its consumer returns is not delivered again before the queue is resumed."""
    async with timed_broker(tmp_path) as broker, client_of(broker.server) as channel:
        queue = await channel.declare_queue("q")
        taken: list[Any] = []
        await queue.consume(taken.append)
        await publish(channel, "m")
        await broker.idle()
        await pause(broker)
        await taken[0].nack(requeue=True)
        await broker.idle()
        assert (len(taken), broker.queue("q").ready) == (1, 1)
        await resume(broker)
        await broker.idle()
        assert [message.redelivered for message in taken] == [False, True]


async def test_a_restart_keeps_the_pause(tmp_path: Path) -> None:
    """The queue is paused before the first client can connect, and a purge drops what is in it."""

    async def begin(broker: Broker) -> None:
        async with client_of(broker.server) as channel:
            await channel.declare_queue("q", durable=True)
            await pause(broker)
            await publish(channel, "m")

    async with timed_broker(tmp_path) as broker:
        await begin(broker)
    async with timed_broker(tmp_path) as broker, client_of(broker.server) as channel:
        assert queue_of(broker.server, "q").paused
        received = await collect(channel)
        await broker.idle()
        assert received == []
        assert (await (await channel.get_queue("q")).purge()).message_count == 1


async def test_the_pause_belongs_to_the_name(tmp_path: Path) -> None:
    """A queue that is deleted and declared again is still paused; the commands name what does not exist."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        with pytest.raises(Unanswered, match=r"^no queue 'q' in vhost '/'$"):
            await told(broker, "pause_queue", queue="q")
        with pytest.raises(Unanswered, match=r"^no queue 'q' in vhost '/'$"):
            await told(broker, "resume_queue", queue="q")
        await channel.declare_queue("q")
        assert await run(broker, "queue", "pause", "q") == 0
        assert await run(broker, "queue", "pause", "q") == 0
        await channel.queue_delete("q")
        await channel.declare_queue("q")
        assert [row["state"] for row in await told(broker, "list_queues")] == ["paused"]
        assert {"vhost": "/", "component": "slotmq-paused-queue", "name": "q", "value": {}} in (
            await told(broker, "export_definitions")
        )["parameters"]
        await channel.queue_delete("q")
        assert await run(broker, "queue", "resume", "q") == 0
        await channel.declare_queue("q")
        assert [row["state"] for row in await told(broker, "list_queues")] == ["running"]


async def test_the_brokers_own_queues_cannot_be_paused(tmp_path: Path) -> None:
    """The queue in which delayed messages wait is refused."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_exchange("d", "x-delayed-message", arguments={"x-delayed-type": "direct"})
        (row,) = await told(broker, "list_queues")
        with pytest.raises(Unanswered, match="is the broker's own: it cannot be paused"):
            await told(broker, "pause_queue", queue=row["name"])
