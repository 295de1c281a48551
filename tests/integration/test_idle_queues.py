"""The memory of a durable queue without consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.deadline import wait_until_async
from tests.in_process import client_of, queue_of, running_broker
from tests.integration.test_slot_delivery import drain, publish

BUDGET_BYTES = 4 << 20
MEMORY = {"resident_max_bytes": BUDGET_BYTES}
SLOTS = {"window_messages": 100}


async def test_a_queue_that_only_grows_keeps_its_head_in_memory(tmp_path: Path) -> None:
    """A queue without consumers keeps its head in memory, an eighth of the budget; the rest is read back in order."""
    async with running_broker(tmp_path, memory=MEMORY, slots=SLOTS) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        for start in range(0, 2000, 200):
            await publish(channel, "q", range(start, start + 200))
        pager, slots = broker.engines["/"].pager, queue_of(broker, "q").level.manager.slots
        await wait_until_async(lambda: pager.paged_out >= 16, "the slots beyond the head to leave")
        pager.tick()
        held_bytes = sum(slot.bytes for slot in slots.values() if slot.resident)
        assert held_bytes <= BUDGET_BYTES / 8 + slots[1].bytes
        assert pager.resident_bytes == held_bytes
        assert [first for first, slot in slots.items() if slot.resident][:3] == [1, 101, 201]
        got = await drain(channel, queue, 2000)
        assert [int(message.body) for message in got] == list(range(2000))
        pager.tick()
        assert (pager.resident_bytes, pager._idle_bytes) == (0, 0)


async def test_a_queue_with_a_consumer_keeps_its_backlog_in_memory(tmp_path: Path) -> None:
    """A backlog below the budget stays in memory as long as a consumer exists, however slow."""
    async with running_broker(tmp_path, memory=MEMORY, slots=SLOTS) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await channel.set_qos(prefetch_count=1)
        seen: list[Any] = []
        await queue.consume(seen.append)
        for start in range(0, 1000, 200):
            await publish(channel, "q", range(start, start + 200))
        pager, slots = broker.engines["/"].pager, queue_of(broker, "q").level.manager.slots
        pager.tick()
        assert pager.paged_out == 0
        assert all(slot.resident for slot in slots.values())
        assert pager.resident_bytes == sum(slot.bytes for slot in slots.values())
