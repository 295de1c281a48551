"""The overlay of the Gryphon paper's Figure 7 as real processes, each of which is killed with -9 under load.

One leaf for publishers, three brokers in the tree node between, two leaves for subscribers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aio_pika
import pytest

from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, PAUSE_S, wait_until_async
from tests.overlay.sites import free_port, overlay

INNERS = ("ib1", "ib2", "ib3")
SUBSCRIBERS = {"sb1": "eu.#", "sb2": "us.#"}
TREE_NODES = {"pb": "publishers", **dict.fromkeys(INNERS, "middle"), "sb1": "europe", "sb2": "america"}
SILENCE_S = 2.0
WINDOW = 200  # publishes that wait for their confirm
STEP = 600  # confirmed messages between two faults


class Tree:
    """The six processes."""

    def __init__(self, folder: Path) -> None:
        self._ports = {name: free_port() for name in TREE_NODES}
        self.processes: dict[str, BrokerProcess] = {}
        for name, node in TREE_NODES.items():
            inner = name in INNERS
            others = [other for other in TREE_NODES if (other in INNERS) is not inner]
            linked = [(TREE_NODES[other], other, 0 if inner else self._ports[other]) for other in others]
            held = overlay(name, node, *linked, leaf=not inner)
            environment = {"SLOTMQ_OVERLAY__NODE": json.dumps([held]), "SLOTMQ_OVERLAY__EXCHANGES": '["orders"]'}
            options = ("--port", str(self._ports[name]))
            self.processes[name] = BrokerProcess(folder / name, *options, environment=environment)

    async def start(self, *names: str) -> None:
        """Start brokers at the same time."""
        await asyncio.gather(*(asyncio.to_thread(self.processes[name].start) for name in names))

    async def linked(self, *names: str) -> None:
        """Return once each of the brokers has a link to each of its neighbours that runs."""
        for name in names:
            inner = name in INNERS
            living = {other for other, process in self.processes.items() if process.alive}
            peers = {other for other in living if (other in INNERS) is not inner}
            await wait_until_async(lambda: self._has_links(name, peers), f"{name} is linked")  # noqa: B023 - awaited here

    async def _has_links(self, name: str, peers: set[str]) -> bool:
        """Return whether the log tells of a link to each peer that was not lost later."""
        links: set[str] = set()
        for event in self.processes[name].log_events():
            if event["event"] == "overlay.link_opened":
                links.add(event["peer"])
            elif event["event"] == "overlay.link_lost":
                links.discard(event["peer"])
        return peers <= links

    def url(self, name: str) -> str:
        """Return where clients connect."""
        return self.processes[name].address.url

    def kill(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.kill()


class Subscriber:
    """Consumes what one leaf gets, and connects again when it was killed."""

    def __init__(self, url: Callable[[], str], pattern: str) -> None:
        self._url = url
        self._pattern = pattern
        self._task: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        self.first: list[int] = []
        self.again: list[int] = []  # numbers that came once more without being marked as redelivered

    def start(self) -> None:
        """Begin to consume."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task], timeout=DEADLINE_S)

    async def _run(self) -> None:
        known: set[int] = set()
        while True:
            with suppress(aio_pika.exceptions.AMQPError, ConnectionError, RuntimeError, TimeoutError):
                async for message in self._messages():
                    number = int(message.body)
                    if number not in known:
                        known.add(number)
                        self.first.append(number)
                    elif not message.redelivered:
                        self.again.append(number)
                    await message.ack()
            await asyncio.sleep(PAUSE_S)

    async def _messages(self) -> AsyncIterator[aio_pika.abc.AbstractIncomingMessage]:
        connection = await aio_pika.connect(self._url())
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(100)
            exchange = await channel.declare_exchange("orders", "topic", durable=True)
            queue = await channel.declare_queue("q", durable=True)
            await queue.bind(exchange, self._pattern)
            self.ready.set()
            # A client that was cut off at the wrong moment waits for ever; it connects again after a silence.
            async with queue.iterator(timeout=SILENCE_S) as messages:
                async for message in messages:
                    yield message


class LoadOfNumbers:
    """Publishes rising numbers, and connects again when its broker was killed; no number is published twice."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._next = 0
        self._progress = asyncio.Event()
        self.confirmed: list[int] = []

    async def publish(self, upto: int) -> None:
        """Publish until so many messages are confirmed in all."""
        while len(self.confirmed) < upto:
            with suppress(aio_pika.exceptions.AMQPError, ConnectionError, RuntimeError):
                connection = await aio_pika.connect(self._url())
                async with connection:
                    channel = await connection.channel()
                    exchange = await channel.declare_exchange("orders", "topic", durable=True)
                    while len(self.confirmed) < upto:
                        await asyncio.gather(*(self._one(exchange) for _ in range(WINDOW)))
            await asyncio.sleep(PAUSE_S)

    async def reach(self, count: int) -> None:
        """Return as soon as so many messages are confirmed."""
        while len(self.confirmed) < count:
            self._progress.clear()
            await asyncio.wait_for(self._progress.wait(), DEADLINE_S)

    async def _one(self, exchange: aio_pika.abc.AbstractExchange) -> None:
        number, self._next = self._next, self._next + 1
        message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await exchange.publish(message, f"{'us' if number % 2 else 'eu'}.{number % 7}")
        self.confirmed.append(number)
        self._progress.set()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Provide the six brokers, which do not run yet."""
    tree = Tree(tmp_path)
    yield tree
    tree.kill()


@pytest.mark.torture
@pytest.mark.timeout(180)
async def test_any_broker_may_die(tree: Tree) -> None:
    """Nothing confirmed is lost, nothing comes twice, order holds; with one of three in the middle all go on.

    The publisher's broker may have more than it confirmed; of that, too, each message comes at most once.
    """
    await tree.start(*TREE_NODES)
    await tree.linked(*TREE_NODES)
    subscribers = {
        name: Subscriber(lambda name=name: tree.url(name), pattern)  # type: ignore[misc] # mypy infers no default
        for name, pattern in SUBSCRIBERS.items()
    }
    load = LoadOfNumbers(lambda: tree.url("pb"))
    async with AsyncExitStack() as stack:
        for subscriber in subscribers.values():
            subscriber.start()
            stack.push_async_callback(subscriber.stop)
        await kill_each(tree, load, subscribers)
    assert not [error for process in tree.processes.values() for error in process.errors()]


async def kill_each(tree: Tree, load: LoadOfNumbers, subscribers: dict[str, Subscriber]) -> None:
    """Kill one broker after the other while messages are published, and check what the subscribers got."""
    for subscriber in subscribers.values():
        await asyncio.wait_for(subscriber.ready.wait(), DEADLINE_S)
    await first_arrivals(load, subscribers)
    begun = len(load.confirmed)
    before = set(load.confirmed)

    for step, name in enumerate([*INNERS, "sb1", "pb"], 1):
        publishing = asyncio.create_task(load.publish(begun + step * STEP))
        await load.reach(begun + (step - 1) * STEP + STEP // 3)
        tree.processes[name].kill()  # in the loop: the publishes of a window are on their way
        if name != "pb":  # what is confirmed now has gone without this broker, or waits for it
            await publishing
        await tree.start(name)
        await publishing
        await tree.linked(name)

    for name, parity in (("sb1", 0), ("sb2", 1)):
        due = {number for number in load.confirmed if number % 2 == parity} - before
        got = subscribers[name]
        await wait_until_async(lambda: arrived(due, got), f"{name} has everything")  # noqa: B023 - awaited here
        assert got.again == []
        later = [number for number in got.first if number not in before]
        assert later == sorted(later)
        assert all(number % 2 == parity for number in got.first)


async def arrived(due: set[int], subscriber: Subscriber) -> bool:
    """Return whether a subscriber has everything that it was to get."""
    return due <= set(subscriber.first)


async def first_arrivals(load: LoadOfNumbers, subscribers: dict[str, Subscriber]) -> None:
    """Publish until each subscriber's start point has passed: from then on it gets everything."""

    async def reached_all() -> bool:
        await load.publish(len(load.confirmed) + WINDOW)
        return all(subscriber.first for subscriber in subscribers.values())

    await wait_until_async(reached_all, "messages reach both subscribers")
