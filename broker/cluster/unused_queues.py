"""Queues that expire unused: no node may have used them for their time, so nodes tell PostgreSQL when they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from broker.cluster.database import Database
from broker.cluster.node_tasks import NodeTasks
from broker.cluster.patience import patiently

__all__ = ["UnusedQueues"]

TELL_S: Final = 0.5  # uses are told together


class ExpiringQueue(Protocol):
    """A queue that expires unused."""

    @property
    def number(self) -> int:
        """The number of its first stream."""

    def expire(self, left_ms: int) -> None:
        """End it, or look again after as many ms."""


class UnusedQueues:
    """Tells which queues were used, and asks whether one has expired."""

    def __init__(self, database: Database, fail: Callable[[BaseException], None]) -> None:
        """`fail` ends the broker."""
        self._database = database
        self._used: dict[int, None] = {}
        self._tasks = NodeTasks(fail)

    def note(self, number: int) -> None:
        """Note that a queue was used on this node."""
        if not self._used:
            self._tasks.start(self._tell_soon())
        self._used[number] = None

    def ask(self, queue: ExpiringQueue, expires_ms: int) -> None:
        """Let a queue expire if no node has used it, or look again when it may."""
        self._tasks.start(self._ask(queue, expires_ms))

    async def stop(self) -> None:
        """Forget everything: the epoch has ended, or the node leaves."""
        await self._tasks.stop()
        self._used.clear()

    # -- the statements -----------------------------------------------------------------------------------------------

    async def _tell_soon(self) -> None:
        await asyncio.sleep(TELL_S)
        used, self._used = list(self._used), {}
        await patiently(lambda: self._database.acting("lease", "queues_used", used))

    async def _ask(self, queue: ExpiringQueue, expires_ms: int) -> None:
        number = queue.number
        if number in self._used:
            await asyncio.sleep(2 * TELL_S)  # what was noted is told first
        rows = await patiently(lambda: self._database.acting("lease", "queue_unused", number, expires_ms))
        queue.expire(rows[0][0])
