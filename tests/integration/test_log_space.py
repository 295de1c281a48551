"""Log space is reclaimed: segments are removed with their slots, and live messages are moved out of old segments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.delivery import compactor
from broker.server import BrokerServer
from tests.in_process import client_of, queue_of, running_broker
from tests.integration.test_slot_delivery import drain, publish

SMALL = {"segment_bytes": 1 << 20, "checkpoint_interval_ms": 3_600_000}


@asynccontextmanager
async def timeless_broker(folder: Path, **sections: Any) -> AsyncIterator[BrokerServer]:
    """Yield a broker whose timers do not run, so that only the test takes checkpoints."""
    async with running_broker(folder, store=SMALL, **sections) as broker:
        broker._timers.close()
        yield broker


def segment_files(folder: Path) -> int:
    """Count the log's files."""
    return len(list(folder.glob("vhosts/*/log/*")))


async def test_segments_go_when_their_slots_are_settled(tmp_path: Path) -> None:
    """After everything was acked, two checkpoints leave one of many log files."""
    slots = {"window_messages": 100}
    async with timeless_broker(tmp_path, slots=slots) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        for start in range(0, 4000, 500):
            await publish(channel, "q", range(start, start + 500))
        assert segment_files(tmp_path) >= 4
        await drain(channel, queue, 4000)
        queue_of(broker, "q").level.manager.seal()
        checkpointer = broker.engines["/"].checkpointer
        for _ in range(2):  # the older of the two that are kept needs nothing any more
            await checkpointer.take()
        assert segment_files(tmp_path) <= 2
        assert broker.engines["/"].store.log.live == {}


async def test_a_pinned_segment_is_compacted(tmp_path: Path) -> None:
    """A few old messages do not keep whole segments: they are moved, stay readable, and survive a restart."""
    slots = {"window_messages": 100}
    async with timeless_broker(tmp_path, slots=slots) as broker, client_of(broker) as channel:
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
        await engine.checkpointer.take()
        assert engine.compactor.relocated >= 3
        assert segment_files(tmp_path) <= 2 < before
        assert int((await kept.get()).body) == 0
    async with timeless_broker(tmp_path, slots=slots) as broker, client_of(broker) as channel:
        kept = await channel.declare_queue("kept", durable=True)
        got = await drain(channel, kept, 8)
        assert [int(message.body) for message in got] == list(range(0, 4000, 500))
        assert [message.redelivered for message in got] == [True] + [False] * 7


async def test_what_a_consumer_will_free_soon_is_not_moved(tmp_path: Path) -> None:
    """Nothing of a segment is copied while a consumer empties it; what it leaves behind is."""
    slots = {"window_messages": 100}
    async with timeless_broker(tmp_path, slots=slots) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await publish(channel, "q", range(4000))
        engine = broker.engines["/"]
        live = engine.store.log.live

        async def look() -> None:
            await engine.checkpointer.take()
            await engine.compactor.run()

        await look()
        segments = sorted(live)
        assert len(segments) >= 4
        while live.get(segments[2], 0) != 2:
            await drain(channel, queue, 100)
            await look()
        assert engine.compactor.relocated == 0
        await look()
        assert engine.compactor.relocated == 1
        assert live.get(segments[2], 0) == 0


@pytest.mark.interpreted("a method of the log is replaced")
async def test_a_relocation_never_takes_the_loop_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn of the loop appends, or repoints, at most a slice of a segment's messages."""
    monkeypatch.setattr(compactor, "MESSAGES", 10)
    monkeypatch.setattr(compactor, "SLOTS", 5)
    slots = {"window_messages": 20}
    async with timeless_broker(tmp_path, slots=slots) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        kept = await channel.declare_queue("kept", durable=True)
        await publish(channel, "kept", range(200))
        await publish(channel, "q", range(1200))
        await drain(channel, queue, 1200)
        engine = broker.engines["/"]
        await engine.checkpointer.take()
        await engine.compactor.run()  # the first look: nobody knows yet who empties what
        steps: Counter[str] = Counter()  # in the present turn
        most: Counter[str] = Counter()

        def count(noun: str, counted: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                steps[noun] += len(arguments[2][0]) if noun == "moved" else 1
                return counted(*arguments)

            return call

        def end_turn() -> None:
            for noun, number in steps.items():
                most[noun] = max(most[noun], number)
            steps.clear()
            turns.append(asyncio.get_running_loop().call_soon(end_turn))

        turns: list[asyncio.Handle] = []
        with pytest.MonkeyPatch.context() as counting:
            log, queues = engine.store.log, engine.store.queues
            counting.setattr(log, "append", count("appended", log.append))
            counting.setattr(queues, "move", count("moved", queues.move))
            counting.setattr(engine.store, "drop_live", count("released", engine.store.drop_live))
            end_turn()
            await engine.compactor.run()
        turns[-1].cancel()
        assert engine.compactor.relocated == 1
        assert most == {"appended": 10, "moved": 10, "released": 5}
        await engine.checkpointer.take()
        await engine.checkpointer.take()
        assert min(engine.store.log.segments) > 1
        got = await drain(channel, kept, 200)
        assert [int(message.body) for message in got] == list(range(200))
