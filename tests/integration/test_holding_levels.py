"""Holding levels of queues beyond memory and beyond a process: what a queue holds is neither lost nor early."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, Final

import pika
import pytest
from pamqp import commands

from broker.core.policy.policy import Policy
from broker.core.queue.due_moments import NEAR_MAX
from broker.server import BrokerServer
from broker.testing import Broker, VirtualClock
from tests.broker_process import BrokerAddress
from tests.deadline import wait_until_async
from tests.in_process import queue_of, timed_broker
from tests.integration.pika.conversation import drain, parameters
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import page_out, talk

WINDOW: Final = 40
SECTIONS: Final[dict[str, Any]] = {"slots": {"window_messages": WINDOW}, "memory": {"resident_max_bytes": 1 << 20}}
HOUR_MS: Final = 3_600_000
SOME_MS: Final = 200_000
RETRY: Final = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000, "x-delayed-retry-max": 60_000}
COUNT: Final = 3 * WINDOW


def address_of(broker: Broker) -> BrokerAddress:
    """Return the address of a broker."""
    return BrokerAddress("127.0.0.1", broker.port)


def hold_until(broker: Broker, header: str = "wait:countdown-ms") -> None:
    """Set the policy of the queue `q`."""
    broker._vhost("/").policies.set(Policy("p", "^q$", "queues", {"hold-until-header": header}))


def publish(
    address: BrokerAddress, waits_ms: list[int], kind: str = "classic", mode: int = 2, body: bytes = bytes(200)
) -> None:
    """Declare the queue `q` and publish messages that are to be held, by their numbers; return after the confirms."""
    with RawClient(address.host, address.port) as client:
        client.open()
        client.method(1, commands.Channel.Open())
        arguments: Any = {"x-queue-type": kind, **RETRY}
        client.method(1, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
        client.method(1, commands.Confirm.Select())
        value = None
        for start in range(0, len(waits_ms), 1000):
            part = waits_ms[start : start + 1000]
            for number, wait_ms in enumerate(part, start):
                properties = commands.Basic.Properties(delivery_mode=mode, headers={"wait": wait_ms})
                client.send(publish_frames(1, "", "q", b"%d %b" % (number, body), properties=properties))
            while not isinstance(value, commands.Basic.Ack) or value.delivery_tag != start + len(part):
                value = client.next().value


def reject_all(address: BrokerAddress, count: int) -> None:
    """Fetch messages, and reject them in reverse, with requeue."""
    with pika.BlockingConnection(parameters(address)) as connection:
        channel = connection.channel()
        tags = [channel.basic_get("q")[0].delivery_tag for _ in range(count)]
        for tag in reversed(tags):
            channel.basic_reject(tag)
        channel.queue_declare("q", passive=True)


def numbers_in(address: BrokerAddress) -> list[int]:
    """Fetch everything from the queue and return the numbers."""
    with pika.BlockingConnection(parameters(address)) as connection:
        return [int(body.split()[0]) for body in drain(connection.channel(), "q")]


def counts_in(address: BrokerAddress) -> list[tuple[int, int]]:
    """Fetch everything from the queue, and return both counts of each message."""
    found = []
    with pika.BlockingConnection(parameters(address)) as connection:
        channel = connection.channel()
        while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
            headers = got[1].headers
            found.append((headers["x-acquired-count"], headers["x-delivery-count"]))
    return found


def in_memory(broker: BrokerServer) -> int:
    """Count the held messages that are in memory."""
    holding = queue_of(broker, "q").holding
    assert holding is not None
    return sum(len(slot.contents or ()) for slot in holding.level.manager.slots.values())


async def killed(broker: Broker, folder: Path) -> Path:
    """Return a copy of a broker's folder, as a kill would leave it: what is written is there."""
    await broker.server.engines["/"].committer.drain()
    copy = folder.with_name(f"{folder.name}-killed")
    await asyncio.to_thread(shutil.copytree, folder, copy)
    return copy


async def idle(broker: Broker, seconds: float = 0) -> None:
    """Move the clock, and return when everything that is due is done."""
    if seconds:
        broker.clock.advance(seconds)
    await broker.idle()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("end", ["stop", "kill", "checkpoint and kill", "page out and kill"])
async def test_what_is_held_survives_and_is_not_early(tmp_path: Path, kind: str, end: str) -> None:
    """After a stop, a checkpoint and a kill each message comes once, at its time and in the order of the moments."""
    clock = VirtualClock()
    waits_ms = [1000 * (1 + number % 7) for number in range(COUNT)]
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        hold_until(broker)
        await talk(broker.server, publish, address_of(broker), waits_ms, kind)
        assert (queue_of(broker.server, "q").ready, queue_of(broker.server, "q").delayed) == (0, COUNT)
        if end.startswith("checkpoint"):
            await broker.server.engines["/"].checkpointer.take()
        if end.startswith("page out"):
            page_out(broker.server, "q")
        folder = await killed(broker, tmp_path) if end.endswith("kill") else tmp_path
    async with timed_broker(folder, clock, **SECTIONS) as broker:
        await idle(broker)
        queue = queue_of(broker.server, "q")
        assert (queue.ready, queue.delayed) == (0, COUNT)
        await idle(broker, 2.9)
        early = [number for number in range(COUNT) if number % 7 < 2]
        assert (queue.ready, queue.delayed) == (len(early), COUNT - len(early))
        await idle(broker, 5)
        assert queue.delayed == 0
        order = sorted(range(COUNT), key=lambda number: number % 7)
        assert await talk(broker.server, numbers_in, address_of(broker)) == order


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("on_disk", [False, True])
async def test_retries_survive_a_kill_with_their_counts(tmp_path: Path, kind: str, on_disk: bool) -> None:
    """A message that was rejected moves to the holding level in one transaction: a kill neither loses nor doubles it.

    A second wait is longer: the counts moved with it.
    """
    clock = VirtualClock()
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        await talk(broker.server, publish, address_of(broker), [0] * COUNT, kind)
        if on_disk:
            page_out(broker.server, "q")
        await talk(broker.server, reject_all, address_of(broker), COUNT)
        await idle(broker)
        assert queue_of(broker.server, "q").delayed == COUNT
        folder = await killed(broker, tmp_path)
    async with timed_broker(folder, clock, **SECTIONS) as broker:
        await idle(broker)
        queue = queue_of(broker.server, "q")
        assert (queue.ready, queue.delayed) == (0, COUNT)
        await idle(broker, 1)
        assert (queue.ready, queue.delayed) == (COUNT, 0)
        await talk(broker.server, reject_all, address_of(broker), COUNT)
        await idle(broker, 1.9)
        assert (queue.ready, queue.delayed) == (0, COUNT)
        folder = await killed(broker, folder)
    async with timed_broker(folder, clock, **SECTIONS) as broker:
        await idle(broker, 0.1)
        queue = queue_of(broker.server, "q")
        assert (queue.ready, queue.unacked, queue.delayed) == (COUNT, 0, 0)
        if kind == "quorum":
            assert await talk(broker.server, counts_in, address_of(broker)) == [(2, 2)] * COUNT


async def test_transient_messages_are_held_too(tmp_path: Path) -> None:
    """They wait in memory or in the spill, with their moments, and end with the process."""
    clock = VirtualClock()
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        hold_until(broker)
        waits_ms = [1000 + number for number in reversed(range(COUNT))]
        await talk(broker.server, publish, address_of(broker), waits_ms, "classic", 1)
        queue = queue_of(broker.server, "q")
        page_out(broker.server, "q")
        assert queue.holding is not None
        for slot in list(queue.holding.level.manager.slots.values()):
            if slot.length:
                broker.server.engines["/"].reader.read(queue.holding.level, slot, lambda: None)  # as a look into it
        await idle(broker, 0.9)
        assert (queue.ready, queue.delayed) == (0, COUNT)
        await idle(broker, 1)
        assert await talk(broker.server, numbers_in, address_of(broker)) == list(reversed(range(COUNT)))
        await talk(broker.server, publish, address_of(broker), [1000], "classic", 1)
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        assert queue_of(broker.server, "q").delayed == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.torture)])
async def test_held_messages_cost_memory_by_slots(tmp_path: Path, count: int) -> None:
    """Few of many held messages are in memory, and one moment for each slot."""
    clock = VirtualClock()
    random = Random(1)
    waits_ms = [random.randrange(2 * HOUR_MS, 9 * HOUR_MS) for _ in range(count)]
    async with timed_broker(tmp_path, clock, memory={"resident_max_bytes": 4 << 20}) as broker:
        hold_until(broker)
        await talk(broker.server, publish, address_of(broker), waits_ms, "classic", 2, b"")
        queue = queue_of(broker.server, "q")
        holding: Any = queue.holding
        await wait_until_async(lambda: in_memory(broker.server) <= 20_000, "most of it on disk")
        slots = len(holding.level.manager.slots)
        assert (queue.delayed, slots) == (count, count // 1000 + 1)
        moments = holding._moments
        kept = len(moments._near), len(moments._slots), len(moments._by_first)
        assert kept <= (0, max(64, 4 * slots), slots)
        first = min(waits_ms)
        clock.advance((first + SOME_MS) / 1000)
        await broker.idle()
        assert queue.ready == sum(wait_ms <= first + SOME_MS for wait_ms in waits_ms)
        assert len(moments._near) <= NEAR_MAX


async def test_an_operator_releases_what_is_due_next(tmp_path: Path) -> None:
    """Some or all of the held messages come before their time, also from disk; the others keep theirs."""
    clock = VirtualClock()
    waits_ms = [1000 * (COUNT - number) for number in range(COUNT)]
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        hold_until(broker)
        await talk(broker.server, publish, address_of(broker), waits_ms)
        page_out(broker.server, "q")
        queue = queue_of(broker.server, "q")
        holding: Any = queue.holding
        assert broker._call(lambda: holding.release_early(50)) == 50
        await idle(broker)
        assert (queue.ready, queue.delayed) == (50, COUNT - 50)
        expected = list(reversed(range(COUNT)))
        assert await talk(broker.server, numbers_in, address_of(broker)) == expected[:50]
        assert holding.next_ms == round(clock() * 1000) + 51_000
        await idle(broker, 51)
        assert queue.ready == 1
        assert broker._call(lambda: holding.release_early(1 << 40)) == COUNT - 51
        await idle(broker)
        assert await talk(broker.server, numbers_in, address_of(broker)) == expected[50:]
        assert (holding.next_ms, holding.last_ms) == (None, None)


async def test_a_purge_and_a_delete_end_what_is_held(tmp_path: Path) -> None:
    """Nothing of it is left in memory or on disk, and the next message is held as the first one was."""
    clock = VirtualClock()
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        hold_until(broker)
        await talk(broker.server, publish, address_of(broker), [1000] * COUNT)
        page_out(broker.server, "q")
        vhost = broker._vhost("/")
        dropped: list[int] = []
        broker._call(lambda: vhost.queues["q"].purge(dropped.append))
        await idle(broker)
        assert (dropped, vhost.queues["q"].delayed) == ([COUNT], 0)
        await talk(broker.server, publish, address_of(broker), [1000])
        await idle(broker, 1)
        assert await talk(broker.server, numbers_in, address_of(broker)) == [0]
        await talk(broker.server, publish, address_of(broker), [1000] * COUNT)
        broker._call(lambda: vhost.queues.drop(vhost.queues["q"]))
        await idle(broker, 5)
        assert broker._next_due_ms() is None
