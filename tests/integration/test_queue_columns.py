"""Bytes and rates of queues, as `slotmq list queues` shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.cli.control_client import ask
from broker.operations.queue_readings import QueueCounters, Rates
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import client_of, queue_of, running_broker

PERSISTENT = aio_pika.DeliveryMode.PERSISTENT


async def row_of(broker: BrokerServer, queue: str, **wanted: Any) -> dict[str, Any]:
    """Return the row of one queue."""
    rows = await asyncio.to_thread(ask, broker.settings.server.data_dir, "list_queues", **wanted)
    return next(row for row in rows if row["name"] == queue)


async def bytes_of(broker: BrokerServer, queue: str) -> tuple[int, int, int, int]:
    """Return message_bytes, and the ready, unacknowledged and persistent bytes."""
    row = await row_of(broker, queue, bytes=True)
    return tuple(row[f"message_bytes{part}"] for part in ("", "_ready", "_unacknowledged", "_persistent"))


async def publish(channel: Any, queue: str, count: int, size: int, mode: Any = PERSISTENT) -> None:
    """Publish messages of a size and wait for their confirms."""
    messages = [aio_pika.Message(bytes(size), delivery_mode=mode) for _ in range(count)]
    await asyncio.gather(*[channel.default_exchange.publish(message, queue) for message in messages])


async def test_bytes_are_those_of_the_bodies(tmp_path: Path) -> None:
    """Ready, unacknowledged and persistent bodies are summed up; a transient queue has no persistent ones."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        durable = await channel.declare_queue("durable", durable=True)
        await channel.declare_queue("transient")
        for queue in ("durable", "transient"):
            await publish(channel, queue, 10, 100)
            await publish(channel, queue, 5, 7, aio_pika.DeliveryMode.NOT_PERSISTENT)
        for _ in range(3):
            await durable.get()
        assert await bytes_of(broker, "durable") == (1035, 735, 300, 1000)
        assert await bytes_of(broker, "transient") == (1035, 1035, 0, 0)
        await durable.purge()
        assert await bytes_of(broker, "durable") == (300, 0, 300, 300)


async def test_many_queues_have_the_whole_body_each(tmp_path: Path) -> None:
    """Copies of one message count in every queue, although they share its memory."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        for number in range(4):
            queue = await channel.declare_queue(f"q{number}", durable=True)
            await queue.bind("amq.fanout")
        exchange = await channel.get_exchange("amq.fanout")
        await exchange.publish(aio_pika.Message(bytes(1000)), "")
        assert {(await bytes_of(broker, f"q{number}"))[0] for number in range(4)} == {1000}


async def test_bytes_of_what_is_on_disk(tmp_path: Path) -> None:
    """Paged-out messages keep their bytes; recovered ones are estimated by slot."""
    small: Any = {"slots": {"window_messages": 100}, "memory": {"resident_max_bytes": 1 << 20}}
    async with running_broker(tmp_path, **small) as broker:
        async with client_of(broker) as channel:
            await channel.declare_queue("q", durable=True)
            await publish(channel, "q", 1000, 4000)
        stream = queue_of(broker, "q").level
        await wait_until_async(
            lambda: any(slot.contents is None for slot in stream.manager.slots.values()), "slots on disk"
        )
        assert await bytes_of(broker, "q") == (4_000_000, 4_000_000, 0, 4_000_000)
    async with running_broker(tmp_path, **small) as broker:
        found, ready, unacked, persistent = await bytes_of(broker, "q")
        assert found == ready == persistent
        assert not unacked
        assert 4_000_000 <= found < 4_400_000


async def test_rates_are_those_since_the_last_look(tmp_path: Path) -> None:
    """Rates are those since the previous request; an idle queue has none."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q")
        idle = await row_of(broker, "q", rates=True)
        assert [idle[f"{kind}_rate"] for kind in Rates._fields] == [0, 0, 0]
        await publish(channel, "q", 500, 10)
        taken = [await queue.get() for _ in range(250)]
        await taken[124].ack(multiple=True)
        busy = await row_of(broker, "q", rates=True)
        assert busy["publish_rate"] > 0
        assert busy["deliver_rate"] == pytest.approx(busy["publish_rate"] / 2, rel=0.1)
        assert busy["ack_rate"] == pytest.approx(busy["publish_rate"] / 4, rel=0.1)


async def test_what_takes_time_is_given_to_who_asks_for_it(tmp_path: Path) -> None:
    """A list without rates and bytes is answered at once, without a second request or a walk through the slots."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        assert not [name for name in await row_of(broker, "q") if name.endswith("_rate") or "bytes" in name]


def test_rates_of_counters() -> None:
    """A requeue does not make the rate of deliveries negative, and no rate is divided by zero time."""
    before = QueueCounters(10.0, 100, 50, 20)
    assert QueueCounters(12.0, 300, 60, 25).rates_since(before) == Rates(100.0, 5.0, 2.5)
    assert QueueCounters(12.0, 100, 40, 20).rates_since(before) == Rates(0.0, 0.0, 0.0)
    assert QueueCounters(10.0, 200, 50, 20).rates_since(before) == Rates(0.0, 0.0, 0.0)
