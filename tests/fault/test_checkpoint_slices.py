"""A checkpoint that is taken in slices, while other work continues between the slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

from broker.amqp.content_header import facts_of
from broker.core.message.message import Envelope, Message
from broker.core.publishing.publish_entry import WIDE_QUEUES
from broker.core.queue.level import Level
from broker.delivery import checkpointer
from broker.server import BrokerServer
from broker.slots.slot import Slot
from broker.store.checkpoint import SlotState
from tests.in_process import queue_of
from tests.raw_client import RawClient
from tests.raw_talk import connect, consume, declare, get, mortal_broker, publish, talk

SLOTS = {"slots": {"window_messages": 2}}
PERSISTENT = b"\x00\x3c\x00\x00" + (4).to_bytes(8, "big") + b"\x10\x00\x02"  # the content header of four bytes


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
    """Publish to two queues, and consume from both; purge a third one and publish to it."""
    publish(client, "first", bodies(10, 11))
    publish(client, "second", bodies(12))
    assert [get(client, name)[0] for name in ("second", "second", "first")] == bodies(5, 6, 0)
    client.call(1, commands.Queue.Purge(queue="third"), commands.Queue.PurgeOk)
    publish(client, "third", bodies(30, 31))


async def test_a_checkpoint_begins_after_an_open_transaction(tmp_path: Path) -> None:
    """Recovery cannot begin within a transaction, so a checkpoint waits for the end of one that takes several turns."""
    async with mortal_broker(tmp_path) as broker:
        engine = broker.engines["/"]
        with engine.store.log.group():
            engine.store.recorder.record_deleted(1, 1000)
            taking = asyncio.create_task(engine.checkpointer.take())
            for _ in range(10):
                await asyncio.sleep(0)
            engine.store.recorder.record_deleted(1, 1001)
            end = engine.store.log.position
        await taking
        assert (engine.checkpointer.count, engine.checkpointer._position) == (1, end)


async def test_what_happens_between_two_slices_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages published, settled or purged during a checkpoint are present at most once, or gone, after a kill."""
    monkeypatch.setattr(checkpointer, "SLICE", 1)
    with ExitStack() as clients:
        async with mortal_broker(tmp_path, SLOTS, crash=True) as broker:
            client = clients.enter_context(await talk(broker, connect, broker))
            await talk(broker, lambda: declare(client, "first", "second", "third", durable=True))
            await talk(broker, publish, client, "first", bodies(0, 1, 2, 3, 4))
            await talk(broker, publish, client, "second", bodies(5, 6, 7))
            await talk(broker, publish, client, "third", bodies(20, 21, 22))
            await checkpoint_while(broker, lambda: publish_and_settle(client))
            await broker.engines["/"].committer.drain()
            assert broker.engines["/"].checkpointer.count == 1
    async with mortal_broker(tmp_path, SLOTS) as broker:
        assert [queue_of(broker, name).ready for name in ("first", "second", "third")] == [6, 2, 2]
        with ExitStack() as clients:
            client = clients.enter_context(await talk(broker, connect, broker))
            assert await talk(broker, consume, client, "first", 6) == bodies(1, 2, 3, 4, 10, 11)
            assert await talk(broker, consume, client, "second", 2) == bodies(7, 12)
            assert await talk(broker, consume, client, "third", 2) == bodies(30, 31)


async def test_slots_sealed_during_a_checkpoint_are_left_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint captures the slots that a level has when its turn comes, and ends however fast publishers are."""
    monkeypatch.setattr(checkpointer, "SLICE", 1)
    async with mortal_broker(tmp_path, SLOTS, crash=True) as broker:
        engine = broker.engines["/"]
        queue = engine.vhost.queues.declare("q", durable=True)
        steps = [0]  # the slots captured in each
        slot_state = engine.checkpointer._slot_state

        def publish_some(count: int) -> None:
            for _ in range(count):
                message = Message(Envelope("", "q"), PERSISTENT, b"body", 1, facts_of(PERSISTENT), broker.turn.now_ms)
                engine.vhost.poster.post(message, [queue])

        def between() -> None:
            steps.append(0)
            publish_some(10)
            if sum(steps) == 5:  # settle captured slots and others
                for slot in list(queue.level.manager.slots.values())[2:9:3]:
                    queue.level.lose(slot, slot.ready_indexes())
                for slot in list(queue.level.manager.slots.values())[8:12]:
                    queue.level.lose(slot, slot.ready_indexes()[:1])

        def counted(level: Level, slot: Slot) -> SlotState:
            if not sum(steps):
                present.append(len(level.manager.slots))
            steps[-1] += 1
            return slot_state(level, slot)

        present: list[int] = []
        publish_some(21)
        engine.checkpointer._shorten = between
        engine.checkpointer._slot_state = counted  # type: ignore[method-assign]
        await engine.checkpointer.take()
        assert (max(steps), sum(steps)) == (1, present[0] - 2)  # two of the three were deleted before their turn
        ready = queue.ready
        level = queue.level
        waiting = [slot.first + index for slot in level.manager.slots.values() for index in slot.ready_indexes()]
        engine.log_settled()
        await engine.committer.drain()
    async with mortal_broker(tmp_path, SLOTS) as broker:
        assert queue_of(broker, "q").ready == ready
        level = queue_of(broker, "q").level
        found = [slot.first + index for slot in level.manager.slots.values() for index in slot.ready_indexes()]
        assert found == waiting


async def test_a_message_on_its_way_into_very_many_queues_survives_a_checkpoint(tmp_path: Path) -> None:
    """Its record lies before the checkpoint, which therefore waits until the message has entered all of its queues."""
    async with mortal_broker(tmp_path, {}, crash=True) as broker:
        engine = broker.engines["/"]
        vhost = engine.vhost
        queues = [vhost.queues.declare(f"q{number}", durable=True) for number in range(WIDE_QUEUES)]
        message = Message(Envelope("", "q"), PERSISTENT, b"body", 1, facts_of(PERSISTENT), broker.turn.now_ms)
        vhost.poster.post(message, queues)
        assert vhost.wide.pending
        await engine.checkpointer.take()
    async with mortal_broker(tmp_path, {}) as broker:
        assert {queue_of(broker, queue.name).ready for queue in queues} == {1}


async def test_the_thread_of_a_checkpoint_lets_the_loop_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It encodes 500 queues and 500 declarations at once, and rests after either; nothing else stops compiled code."""
    rests: list[int] = []
    monkeypatch.setattr(checkpointer, "_let_others_run", lambda: rests.append(1))
    async with mortal_broker(tmp_path, {}) as broker:
        engine = broker.engines["/"]
        for number in range(1000):
            engine.vhost.queues.declare(f"q{number}", durable=True)
        await engine.checkpointer.take()
        assert len(rests) > 1000 // checkpointer.CHANGES_AT_ONCE


async def test_a_turn_with_a_slice_has_half_a_share_of_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two slices the checkpoint shortens the next turn, so that clients wait for one or the other."""
    monkeypatch.setattr(checkpointer, "SLICE", 1)
    shortened: list[int] = []
    async with mortal_broker(tmp_path, {}) as broker:
        engine = broker.engines["/"]
        for number in range(10):
            engine.vhost.queues.declare(f"q{number}", durable=True)
        engine.checkpointer._shorten = lambda: shortened.append(1)
        await engine.checkpointer.take()
        assert len(shortened) >= 9
