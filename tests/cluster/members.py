"""Nodes of a cluster for tests: without a broker, and with records of what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.cluster.database import Database
from broker.cluster.database_rows import LeasedRow, Member
from broker.cluster.hint import Hint
from broker.cluster.node import ClusterNode
from tests.deadline import DEADLINE_S

__all__ = ["LEASE_MS", "TestNode", "until"]

LEASE_MS = 500


async def until(condition: Callable[[], object], patience_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 a condition is a plain function
            await asyncio.sleep(0.005)


class TestNode:
    """A node and what it was told."""

    __test__ = False

    def __init__(self, url: str, name: str, schema: str, **options: Any) -> None:
        self.told: list[str] = []
        self.hints: list[Hint] = []
        self.rows: list[list[LeasedRow]] = []
        self.names: list[str] = []
        self.may_be_lost = asyncio.Event()
        self.may_be_lost.set()
        self.database = Database(url, name, schema=schema, heard=self.hints.append, pause_max_s=0.1)
        self.node = ClusterNode(self.database, self, url=f"amqp://{name}", **{"lease_ms": LEASE_MS} | options)

    async def joining(self) -> None:
        self.told.append("joining")

    async def joined(self, version: int) -> None:
        assert not self.node.may_act()
        self.told.append("joined")

    def paused(self, reason: str) -> None:
        assert not self.node.may_act()
        self.told.append("paused")

    def resumed(self) -> None:
        assert self.node.may_act()
        self.told.append("resumed")

    async def lost(self, reason: str) -> None:
        assert not self.node.may_act()
        await self.may_be_lost.wait()
        self.told.append("lost")

    def members_seen(self, members: list[Member]) -> None:
        pass

    def members_changed(self, members: list[Member]) -> None:
        self.names = sorted(member.node for member in members)

    def reconcile(self, rows: list[LeasedRow]) -> None:
        self.rows.append(rows)
