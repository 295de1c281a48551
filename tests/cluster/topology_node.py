"""Nodes of a cluster with a vhost each and no messages, for tests of the topology log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pamqp import commands

from broker.amqp.codec import Method, encode_method
from broker.cluster.database import Database
from broker.cluster.database_rows import ClusterMember, LeasedRow
from broker.cluster.hint import Hint
from broker.cluster.node import ClusterNode
from broker.cluster.shared_topology import SharedJournal, SharedTopology
from tests.cluster.members import LEASE_MS, until
from tests.unit.core.room import Client, Room, describe

Queue, Exchange = commands.Queue, commands.Exchange


class TopologyNode:
    """A member with one vhost, on a store in memory; its clients speak AMQP to the sessions of the broker."""

    def __init__(self, url: str, name: str, schema: str, lease_ms: int = LEASE_MS) -> None:
        self.name = name
        self.failures: list[BaseException] = []
        self.may_flush = asyncio.Event()
        self.may_flush.set()
        self.flushes = 0
        self.is_dead = False
        self.clients: list[Client] = []
        self.database = Database(url, name, schema=schema, handle_hint=self._handle_hint)
        self.topology = SharedTopology(self.database, flushed=self._flushed, fail=self.failures.append)
        self.node = ClusterNode(
            self.database,
            self,
            url=f"amqp://{name}",
            lease_ms=lease_ms,
            applied_version=lambda: self.topology.log.reported,
        )
        self.room = self.open_vhost("/")

    def open_vhost(self, name: str) -> Room:
        """Open a vhost that follows the topology log."""
        room = Room(name, journal=SharedJournal(self.topology, name))
        self.topology.opened(room.vhost)
        return room

    async def start(self) -> None:
        await self.node.start()

    async def stop(self) -> None:
        await self.topology.log.stop()
        await self.node.leave()
        assert self.failures == []

    async def kill(self) -> None:
        """Stop without leaving, as a broken machine does."""
        await self.topology.log.stop()
        await self.node.close()
        self.is_dead = True

    def _handle_hint(self, hint: Hint) -> None:
        self.topology.log.handle_hint(hint)

    async def _flushed(self) -> None:
        self.flushes += 1
        await self.may_flush.wait()

    # -- clients ------------------------------------------------------------------------------------------------------

    def enter(self, room: Room | None = None) -> Client:
        """Return a client on a new connection."""
        client = (room or self.room).enter()
        self.clients.append(client)
        return client

    async def ask(self, client: Client, method: Method) -> str:
        """Send a method on channel 1, and return its answer as text."""
        (answer,) = await self.ask_all(client, [method])
        return answer

    async def ask_all(self, client: Client, methods: list[Method]) -> list[str]:
        """Send methods in one piece, and return their answers, up to a close, as text."""
        answers: list[str] = []
        client.machine.feed(b"".join(encode_method(1, method) for method in methods))

        def answered() -> bool:
            if not client.machine.held:
                client.machine.feed(b"")
            answers.extend(shown(method) for _, method in client.replies())
            return len(answers) >= len(methods) or any("close" in answer or " 4" in answer for answer in answers)

        await until(answered)
        return answers

    # -- events of the node -------------------------------------------------------------------------------------------

    async def joining(self) -> None:
        await self.topology.log.load()

    async def joined(self, version: int) -> None:
        await self.topology.start()
        assert self.topology.log.applied >= version

    def paused(self, reason: str) -> None:
        pass

    def activated(self) -> None:
        pass

    async def lost(self, reason: str) -> None:
        await self.topology.log.stop()
        for client in self.clients:
            client.machine.lost()
        self.clients.clear()

    def members_seen(self, members: list[ClusterMember], *, changed: bool) -> None:
        pass

    def reconcile(self, rows: list[LeasedRow]) -> None:
        pass


def shown(method: Method) -> str:
    """Return an answer as text."""
    if isinstance(method, Queue.DeclareOk):
        return f"declared {method.queue}"
    if isinstance(method, Queue.DeleteOk):
        return f"deleted {method.message_count}"
    return describe(method)


@asynccontextmanager
async def cluster_of(names: str, url: str, schema: str, **options: Any) -> AsyncIterator[list[TopologyNode]]:
    """Provide a cluster of nodes; each letter is the name of one."""
    nodes = [TopologyNode(url, name, schema, **options) for name in names]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            if not node.is_dead:
                await node.stop()


async def everywhere(nodes: list[TopologyNode], condition: Callable[[TopologyNode], object]) -> None:
    """Wait until a condition is true on every node."""
    await until(lambda: all(condition(node) for node in nodes))
