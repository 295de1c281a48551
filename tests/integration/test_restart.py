"""A stop and a start keep messages, order, settlements and flags; other state ends with the process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from tests.in_process import client_of, queue_of, running_broker
from tests.integration.test_slot_delivery import TRANSIENT, drain, publish


async def all_of(channel: Any, name: str) -> list[tuple[int, bool]]:
    """Fetch everything ready; return (number, redelivered) of each message."""
    queue = await channel.declare_queue(name, durable=True)
    got = []
    while (message := await queue.get(fail=False, no_ack=True)) is not None:
        got.append((int(message.body), message.redelivered))
    return got


async def test_transient_messages_in_memory_survive_a_checkpoint_and_not_a_stop(tmp_path: Path) -> None:
    """A checkpoint neither drops transient messages of a durable queue from the running broker nor writes them."""
    memory = {"resident_max_bytes": 1 << 20}
    async with running_broker(tmp_path, memory=memory) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await publish(channel, "q", range(3), TRANSIENT)
        await publish(channel, "q", range(3, 5))
        engine = broker.engines["/"]
        await engine.checkpointer.take()
        assert engine.store.spill.segments == {}
        slot = queue_of(broker, "q").level.manager.open
        queue_of(broker, "q").level.manager.seal()
        assert engine.pager.log_entries(queue_of(broker, "q").level, slot)
        slot.contents = None
        await engine.checkpointer.take()
        got = await drain(channel, queue, 2, prefetch=1)
        assert [int(message.body) for message in got] == [0, 1]
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        assert [number for number, _ in await all_of(channel, "q")] == [3, 4]


async def test_exchanges_and_bindings_come_back(tmp_path: Path) -> None:
    """Durable exchanges, queues and bindings survive a restart; the others do not."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        exchange = await channel.declare_exchange("x", aio_pika.ExchangeType.TOPIC, durable=True)
        await channel.declare_exchange("gone", aio_pika.ExchangeType.TOPIC)
        for name, durable in (("kept", True), ("lost", False)):
            queue = await channel.declare_queue(name, durable=durable)
            await queue.bind(exchange, "a.*")
            await queue.bind(exchange, "b.#")
        await (await channel.get_queue("kept")).unbind(exchange, "b.#")
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        vhost = broker.engines["/"].vhost
        assert list(vhost.queues) == ["kept"]
        assert "gone" not in vhost.exchanges
        exchange = await channel.get_exchange("x")
        await exchange.publish(aio_pika.Message(b"1"), "a.1")
        await exchange.publish(aio_pika.Message(b"2"), "b.1", mandatory=False)
        assert [number for number, _ in await all_of(channel, "kept")] == [1]


async def test_what_falls_due_while_the_broker_stops_waits_for_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is logged after the last checkpoint of a stop; otherwise it would not be clean and all be redelivered."""
    ttl_ms = 100
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": ttl_ms}
        await channel.declare_queue("q", durable=True, arguments=arguments)
        engine = broker.engines["/"]
        write = engine.store.write_checkpoint

        def write_late(checkpoint: Any, *between: Any) -> None:
            time.sleep(2 * ttl_ms / 1000)  # in the store's thread; the loop keeps running
            write(checkpoint, *between)

        monkeypatch.setattr(engine.store, "write_checkpoint", write_late)
        await publish(channel, "q", range(1))
        assert queue_of(broker, "q").ready == 1
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        assert broker.engines["/"].recovered_clean
        queue = await channel.get_queue("dead")
        message = await next_message(queue)
        assert (int(message.body), message.redelivered) == (0, False)


async def next_message(queue: Any) -> Any:
    """Return the next message of a queue, after waiting for it."""
    async with queue.iterator(no_ack=True, timeout=10) as messages:
        return await anext(messages)
