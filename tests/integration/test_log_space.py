"""The log gives its space back: segments go with their slots, and what pins a segment is moved out of it."""

from __future__ import annotations

from pathlib import Path

from tests.in_process import client_of, queue_of, running_broker
from tests.integration.test_slot_delivery import drain, publish

SMALL = {"segment_bytes": 1 << 20, "checkpoint_interval_ms": 3_600_000}


def segment_files(folder: Path) -> int:
    """Count the log's files."""
    return len(list(folder.glob("vhosts/*/log/*")))


async def test_segments_go_when_their_slots_are_settled(tmp_path: Path) -> None:
    """After everything was acked, a checkpoint leaves one log file of many."""
    slots = {"window_messages": 100}
    async with running_broker(tmp_path, store=SMALL, slots=slots) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        for start in range(0, 4000, 500):
            await publish(channel, "q", range(start, start + 500))
        assert segment_files(tmp_path) >= 4
        await drain(channel, queue, 4000)
        queue_of(broker, "q").stream.manager.seal()
        await broker.engines["/"].checkpointer.take()
        assert segment_files(tmp_path) <= 2
        assert broker.engines["/"].store.log.live == {}


async def test_a_pinned_segment_is_compacted(tmp_path: Path) -> None:
    """A few old messages do not keep whole segments: they are moved, stay readable, and survive a restart."""
    slots = {"window_messages": 100}
    async with running_broker(tmp_path, store=SMALL, slots=slots) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        kept = await channel.declare_queue("kept", durable=True)
        for start in range(0, 4000, 500):
            await publish(channel, "kept", range(start, start + 1))
            await publish(channel, "q", range(start, start + 500))
        await drain(channel, queue, 4000)
        engine = broker.engines["/"]
        before = segment_files(tmp_path)
        for _ in range(before + 1):
            await engine.checkpointer.take()
            await engine.compactor.run()
        await engine.checkpointer.take()
        assert engine.compactor.relocated >= 3
        assert segment_files(tmp_path) <= 2 < before
        assert int((await kept.get()).body) == 0
    async with running_broker(tmp_path, store=SMALL, slots=slots) as broker, client_of(broker) as channel:
        kept = await channel.declare_queue("kept", durable=True)
        got = await drain(channel, kept, 8)
        assert [int(message.body) for message in got] == list(range(0, 4000, 500))
        assert [message.redelivered for message in got] == [True] + [False] * 7
