"""The overlay of the Gryphon paper's Figure 7 as real processes, with a proxy on each link.

A leaf for publishers, a middle tree node of three brokers, and two leaves for subscribers.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until_async
from tests.overlay.sites import free_port, overlay
from tests.overlay.steady_clients import EXCHANGE, SteadyPublisher, SteadySubscriber
from tools.link_proxy import LinkProxy

INNERS: Final = ("ib1", "ib2", "ib3")
SUBSCRIBERS: Final = {"sb1": "eu.#", "sb2": "us.#"}
TREE_NODES: Final = {
    "pb": "publishers", **dict.fromkeys(INNERS, "middle"), "sb1": "europe", "sb2": "america"
}  # fmt: skip
LEAVES: Final = ("pb", "sb1", "sb2")


class Figure7:
    """The six processes; `links` maps pairs of a leaf, which dials, and an inner broker to proxies."""

    def __init__(self, folder: Path) -> None:
        self._ports = {name: free_port() for name in TREE_NODES}
        self._folder = folder
        self.links = {(leaf, inner): LinkProxy(self._ports[inner]) for leaf in LEAVES for inner in INNERS}
        self.processes: dict[str, BrokerProcess] = {}

    async def start_all(self) -> None:
        """Start the proxies and brokers, and wait until all are linked."""
        for link in self.links.values():
            await link.start()
        for name, node in TREE_NODES.items():
            is_leaf = name in LEAVES
            others = INNERS if is_leaf else LEAVES
            linked = [(TREE_NODES[other], other, self.links[name, other].port if is_leaf else 0) for other in others]
            held = overlay(name, node, *linked, leaf=is_leaf)
            environment = {"SLOTMQ_OVERLAY__NODE": json.dumps([held]), "SLOTMQ_OVERLAY__EXCHANGES": f'["{EXCHANGE}"]'}
            options = ("--port", str(self._ports[name]))
            self.processes[name] = BrokerProcess(self._folder / name, *options, environment=environment)
        await self.start(*TREE_NODES)
        await self.linked(*TREE_NODES)

    async def stop_all(self) -> None:
        """Kill all brokers and stop the proxies."""
        for process in self.processes.values():
            process.kill()
        for link in self.links.values():
            await link.stop()

    async def start(self, *names: str) -> None:
        """Start brokers, two at a time."""
        for first in range(0, len(names), 2):
            pair = names[first : first + 2]
            await asyncio.gather(*(asyncio.to_thread(self.processes[name].start) for name in pair))

    async def linked(self, *names: str) -> None:
        """Wait until each of the brokers has links to all of its running neighbours."""
        for name in names:
            others = INNERS if name in LEAVES else LEAVES
            peers = {other for other in others if self.processes[other].alive}
            await wait_until_async(partial(self._has_links, name, peers), f"{name} is linked")

    def _has_links(self, name: str, peers: set[str]) -> bool:
        return peers <= self.links_of(name)

    def links_of(self, name: str) -> set[str]:
        """Return the peers to which a broker has links, according to its log."""
        links: set[str] = set()
        for event in self.processes[name].log_events():
            if event["event"] == "overlay.link_opened":
                links.add(event["peer"])
            elif event["event"] == "overlay.link_lost":
                links.discard(event["peer"])
        return links

    def address(self, name: str) -> BrokerAddress:
        """Return the address for clients."""
        return BrokerAddress("127.0.0.1", self._ports[name])

    def kill(self, *names: str) -> None:
        """End brokers with SIGKILL."""
        for name in names:
            self.processes[name].kill()

    def freeze(self, name: str) -> None:
        """Stop a process with SIGSTOP, like a machine that hangs: its sockets stay open."""
        self.processes[name].running.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen process continue."""
        self.processes[name].running.send_signal(signal.SIGCONT)

    def carried_bytes(self, inner: str) -> int:
        """Return the bytes passed between the publishing leaf and an inner broker."""
        return sum(self.links["pb", inner].passed_bytes.values())

    def errors(self) -> list[object]:
        """Return the errors logged by the brokers since their last start."""
        return [error for process in self.processes.values() for error in process.errors()]


class Load:
    """A publisher at pb, and a subscriber at each of the other leaves.

    Invariant: each message confirmed after `begin` must reach its subscriber, once and in order.
    """

    def __init__(self, tree: Figure7, per_s: int) -> None:
        self.publisher = SteadyPublisher(partial(tree.address, "pb"), per_s)
        self.subscribers = {
            name: SteadySubscriber(partial(tree.address, name), pattern) for name, pattern in SUBSCRIBERS.items()
        }
        self._before = 0

    async def begin(self) -> None:
        """Start the clients, and wait until messages reach all subscribers."""
        for subscriber in self.subscribers.values():
            subscriber.start()
        for name, subscriber in self.subscribers.items():
            assert await asyncio.to_thread(subscriber.ready.wait, DEADLINE_S), f"{name} does not consume"
        self.publisher.start()
        subscribers = self.subscribers.values()
        await wait_until_async(lambda: all(one.numbers for one in subscribers), "messages reach both subscribers")
        self._before = len(self.publisher.published_s)

    async def confirm(self, count: int) -> None:
        """Wait until this many more messages are confirmed."""
        wanted = len(self.publisher.confirmed) + count
        await wait_until_async(lambda: len(self.publisher.confirmed) >= wanted, f"{count} more confirms")

    def due(self, name: str) -> set[int]:
        """Return the confirmed numbers that must reach a subscriber."""
        parity = list(SUBSCRIBERS).index(name)
        return {number for number in self.publisher.confirmed.copy() if number >= self._before and number % 2 == parity}

    async def arrive(self, *names: str) -> None:
        """Wait until the messages confirmed by now have arrived at subscribers."""
        for name in names:
            arrived = partial(self.due(name).issubset, self.subscribers[name].numbers)
            await wait_until_async(arrived, f"{name} has everything")

    async def end(self) -> None:
        """Stop publishing, and check that all messages arrived, in order and once."""
        await asyncio.to_thread(self.publisher.finish)
        await self.arrive(*SUBSCRIBERS)
        for name, subscriber in self.subscribers.items():
            parity = list(SUBSCRIBERS).index(name)
            assert subscriber.repeated() == [], name
            first = [number for number in subscriber.first_arrivals() if number >= self._before]
            assert first == sorted(first), name
            assert {number % 2 for number in first} == {parity}, name

    async def hang_up(self) -> None:
        """End the clients."""
        for client in (self.publisher, *self.subscribers.values()):
            await asyncio.to_thread(client.hang_up)


@asynccontextmanager
async def figure7(folder: Path, per_s: int) -> AsyncIterator[tuple[Figure7, Load]]:
    """Yield the six brokers under load; at the end, check that no message was lost or repeated."""
    tree = Figure7(folder)
    load = Load(tree, per_s)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(tree.stop_all)
        await tree.start_all()
        stack.push_async_callback(load.hang_up)
        await load.begin()
        yield tree, load
        await load.end()
        assert tree.errors() == []
