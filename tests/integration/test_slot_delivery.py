"""Delivery through slots: nothing is delivered except what the slot manager leases."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from pamqp import commands

from broker.delivery.reader import SlotReader
from broker.delivery.worker import Worker
from broker.slots.manager import SlotManager
from broker.slots.slot import Slot
from broker.slots.states import Owner
from broker.store.files import Files
from tests.cold_files import ColdFiles
from tests.in_process import client_of, queue_of, running_broker
from tests.raw_client import RawClient, method_frame

PERSISTENT = aio_pika.DeliveryMode.PERSISTENT
TRANSIENT = aio_pika.DeliveryMode.NOT_PERSISTENT


async def publish(channel: Any, queue: str, numbers: range, mode: aio_pika.DeliveryMode = PERSISTENT) -> None:
    """Publish numbered messages to a queue and wait for their confirms."""
    exchange = channel.default_exchange
    await asyncio.gather(
        *(exchange.publish(aio_pika.Message(b"%01000d" % n, delivery_mode=mode), queue) for n in numbers)
    )


async def drain(channel: Any, queue: Any, count: int, prefetch: int = 100) -> list[Any]:
    """Consume and ack `count` messages, then cancel."""
    await channel.set_qos(prefetch_count=prefetch)
    got: list[Any] = []
    async with queue.iterator() as messages:
        async for message in messages:
            got.append(message)
            await message.ack()
            if len(got) == count:
                break
    return got


class Miser(SlotManager):
    """A slot manager that leases nothing."""

    def get(self, owner: Owner) -> Slot | None:
        """Return no slot for any worker."""
        return None


@pytest.mark.interpreted("a slot manager of the test takes the place of the broker's")
async def test_without_the_slot_manager_nothing_is_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot manager that leases nothing stops every way of getting a message, including basic.get."""
    monkeypatch.setattr("broker.core.queue.level.SlotManager", Miser)
    async with running_broker(tmp_path / "data") as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await publish(channel, "q", range(3))
        assert await queue.get(fail=False) is None
        seen: list[Any] = []
        await queue.consume(seen.append)
        await publish(channel, "q", range(3, 6))
        await channel.declare_queue("q", passive=True)  # a round trip after anything that would have been delivered
        assert seen == []
        assert queue_of(broker, "q").ready == 6


@pytest.mark.interpreted("a method of the worker is replaced")
async def test_a_dead_workers_queues_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of a worker that fails during a delivery go to another one, and no message is lost."""
    serve = Worker._serve
    failures: list[str] = []

    def fails_once(worker: Worker, queue: Any) -> bool:
        if not failures and queue.level.manager.ready == 50:
            failures.append(worker.owner.worker)
            queue.level.manager.get(worker.owner)
            raise RuntimeError("a defect")
        return serve(worker, queue)

    monkeypatch.setattr(Worker, "_serve", fails_once)
    async with running_broker(tmp_path / "data", slots={"workers": 2}) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q")
        await publish(channel, "q", range(50))
        got = await drain(channel, queue, 50)
        assert [int(message.body) for message in got] == list(range(50))
        assert len(failures) == 1
        assert queue_of(broker, "q").worker.owner.worker != failures[0]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("durable", [True, False])
async def test_a_backlog_is_paged_out_and_comes_back(tmp_path: Path, durable: bool, cached: bool) -> None:
    """Messages beyond the memory budget are paged out, read back slot by slot, and arrive once and in order.

    The loop reads them where the page cache has them.
    """
    files = None if cached else ColdFiles()
    memory = {"resident_max_bytes": 1 << 20}
    slots = {"window_messages": 100}
    async with (
        running_broker(tmp_path / "data", files, memory=memory, slots=slots) as broker,
        client_of(broker) as channel,
    ):
        queue = await channel.declare_queue("q", durable=durable)
        for start in range(0, 2000, 200):
            await publish(channel, "q", range(start, start + 200), PERSISTENT if start % 400 else TRANSIENT)
        inside = queue_of(broker, "q")
        engine = broker.engines["/"]
        while engine.pager.resident_bytes > 1 << 20 or not engine.pager.paged_out:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        on_disk = [slot for slot in inside.level.manager.slots.values() if not slot.resident]
        assert len(on_disk) > 5
        first = await queue.get()
        assert int(first.body) == 0
        await first.nack(requeue=True)
        got = await drain(channel, queue, 2000)
        assert [int(message.body) for message in got] == list(range(2000))
        assert [message.redelivered for message in got] == [True] + [False] * 1999
        assert engine.reader.reads >= len(on_disk) // 2
        assert (engine.reader.spent > 0) == cached
        assert (inside.ready, inside.unacked, len(inside.level.manager.slots)) == (0, 0, 1)


@pytest.mark.interpreted("a method of the reader is replaced")
@pytest.mark.parametrize(
    ("files", "ahead"),
    [(None, range(1)), (ColdFiles(), range(19, 20)), (ColdFiles(*[False] * 3, *[True] * 5), range(1, 19))],
    ids=["warm", "cold", "mixed"],
)
async def test_the_next_slot_is_read_ahead_of_the_worker(
    tmp_path: Path, files: Files | None, ahead: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While slots come from the disk, each is read while the one before it is delivered; else none is read so early.

    No slot is read twice.
    """
    read = SlotReader.read
    waits: list[bool] = []

    def watched(reader: SlotReader, stream: Any, slot: Slot, then: Any) -> None:
        waits.append(then == stream.queue.wake)
        read(reader, stream, slot, then)

    async with (
        running_broker(tmp_path / "data", files, slots={"window_messages": 10}) as broker,
        client_of(broker) as channel,
    ):
        queue = await channel.declare_queue("q", durable=True)
        await publish(channel, "q", range(200))
        engine, inside = broker.engines["/"], queue_of(broker, "q")
        inside.level.manager.seal()
        for slot in [slot for slot in inside.level.manager.slots.values() if slot.length]:
            assert engine.pager.log_entries(inside.level, slot)
            slot.page_out(0)
        monkeypatch.setattr(SlotReader, "read", watched)
        got = await drain(channel, queue, 200, prefetch=5)
    assert [int(message.body) for message in got] == list(range(200))
    assert waits.count(False) in ahead
    assert engine.reader.reads == 20


async def test_basic_get_waits_for_the_disk(tmp_path: Path) -> None:
    """basic.get of a message on disk is answered after its read, before the channel's later methods."""
    memory = {"resident_max_bytes": 1 << 20}
    async with running_broker(tmp_path / "data", memory=memory, slots={"window_messages": 10}) as broker:
        async with client_of(broker) as channel:
            await channel.declare_queue("q", durable=True)
            await publish(channel, "q", range(30))
        engine, inside = broker.engines["/"], queue_of(broker, "q")
        for slot in list(inside.level.manager.slots.values())[:3]:
            assert engine.pager.log_entries(inside.level, slot)
            slot.contents = None
        kinds = await asyncio.to_thread(get_all_at_once, broker.listener.port, 12)
    assert kinds == [*range(12), 18]


def get_all_at_once(port: int, count: int) -> list[int]:
    """Send `count` basic.get and a passive declare in one piece; return the bodies, then the count, in order."""
    with RawClient("127.0.0.1", port).with_channel() as client:
        client.send(
            *(method_frame(1, commands.Basic.Get(queue="q", no_ack=True)) for _ in range(count)),
            method_frame(1, commands.Queue.Declare(queue="q", passive=True)),
        )
        answers: list[int] = []
        for _ in range(count):
            client.expect(commands.Basic.GetOk, 1)
            answers.append(int(client.expect_content(1)[1]))
        return [*answers, client.expect(commands.Queue.DeclareOk, 1).message_count or 0]


async def test_a_lone_message_is_delivered_from_the_open_slot(tmp_path: Path) -> None:
    """A message far below the window is delivered while its slot is open: WSO2's broker waited two seconds and more."""
    async with (
        running_broker(tmp_path / "data", slots={"window_messages": 1000}) as broker,
        client_of(broker) as channel,
    ):
        queue = await channel.declare_queue("q")
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        await queue.consume(arrived.put)
        turns = broker.turn.count
        await publish(channel, "q", range(1))
        message = await arrived.get()
        slot = queue_of(broker, "q").level.manager.open
        assert (slot.first, slot.length, slot.fill.value) == (1, 1, "open")
        assert broker.turn.count - turns <= 4
        await message.ack()


async def test_slots_command_shows_what_is_there(tmp_path: Path) -> None:
    """`slotmq slots` shows ranges, states, owners, settled counts and the places of the messages."""
    async with running_broker(tmp_path / "data", slots={"window_messages": 4}) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await publish(channel, "q", range(10))
        await channel.set_qos(prefetch_count=3)
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        await queue.consume(arrived.put)
        first = [await arrived.get() for _ in range(3)]
        await first[0].ack()
        await arrived.get()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "broker", "slots", "q", "--json", "--data-dir", str(tmp_path / "data"),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
        answer = json.loads(output)
        assert process.returncode == 0
        rows = [(row["first"], row["end"], row["state"], row["settled"], row["resident"]) for row in answer["slots"]]
        assert rows == [(1, 5, "sealed", 1, True), (5, 9, "sealed", 0, True), (9, 11, "open", 0, True)]
        assert answer["slots"][0]["owner"].startswith("local/worker-")
        assert answer["slots"][2]["owner"] is None
        assert (answer["ready"], answer["unacked"]) == (6, 3)
