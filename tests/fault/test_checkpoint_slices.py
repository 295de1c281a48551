"""A checkpoint that is taken in slices, while other work goes on between the slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.delivery import checkpointer
from broker.server import BrokerServer
from tests.in_process import queue_of
from tests.raw_client import RawClient
from tests.raw_talk import connect, consume, declare, get, mortal_broker, publish, talk

SLOTS = {"slots": {"window_messages": 2}}


def bodies(*numbers: int) -> list[bytes]:
    """Return the bodies of these messages."""
    return [b"%d" % number for number in numbers]


async def checkpoint_while(broker: BrokerServer, work: Callable[[], None]) -> None:
    """Take a checkpoint; the work starts and ends between its first slice and its last."""
    engine = broker.engines["/"]
    state = engine.checkpointer._state
    begun, done = asyncio.Event(), asyncio.Event()

    async def gated(stream: object) -> object:
        """Wait for the work after the first stream."""
        found = await state(stream)  # type: ignore[arg-type]
        begun.set()
        await done.wait()
        return found

    engine.checkpointer._state = gated  # type: ignore[method-assign, assignment]
    taking = asyncio.create_task(engine.checkpointer.take())
    await begun.wait()
    await talk(broker, work)
    done.set()
    await taking
    engine.checkpointer._state = state  # type: ignore[method-assign]


def publish_and_settle(client: RawClient) -> None:
    """Publish to two queues, and consume from both."""
    publish(client, "first", bodies(10, 11))
    publish(client, "second", bodies(12))
    assert [get(client, name)[0] for name in ("second", "second", "first")] == bodies(5, 6, 0)


async def test_what_happens_between_two_slices_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages published or settled during a checkpoint are present, or gone, after a kill, and exist at most once."""
    monkeypatch.setattr(checkpointer, "SLICE", 1)
    with ExitStack() as clients:
        async with mortal_broker(tmp_path, SLOTS, crash=True) as broker:
            client = clients.enter_context(await talk(broker, connect, broker))
            await talk(broker, lambda: declare(client, "first", "second", durable=True))
            await talk(broker, publish, client, "first", bodies(0, 1, 2, 3, 4))
            await talk(broker, publish, client, "second", bodies(5, 6, 7))
            await checkpoint_while(broker, lambda: publish_and_settle(client))
            await broker.engines["/"].committer.drain()
            assert broker.engines["/"].checkpointer.count == 1
    async with mortal_broker(tmp_path, SLOTS) as broker:
        assert (queue_of(broker, "first").ready, queue_of(broker, "second").ready) == (6, 2)
        with ExitStack() as clients:
            client = clients.enter_context(await talk(broker, connect, broker))
            assert await talk(broker, consume, client, "first", 6) == bodies(1, 2, 3, 4, 10, 11)
            assert await talk(broker, consume, client, "second", 2) == bodies(7, 12)
