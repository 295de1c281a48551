"""Queues that expire unused: no node may have used them for their time, so nodes tell PostgreSQL when they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from broker.cluster.database import Database
from broker.cluster.patience import patiently
from broker.tasks import Tasks

__all__ = ["UnusedQueues"]

TELL_S: Final = 0.1  # between two statements that tell of uses
LATE_MS: Final = 200  # a queue ends so much later than it could: what other nodes know is told by then


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
        self._tells = False
        self._tasks = Tasks(fail)

    def note(self, number: int) -> None:
        """Note that a queue was used on this node."""
        self._used[number] = None
        if not self._tells:
            self._tells = True
            self._tasks.start(self._tell())

    def forget(self, number: int) -> None:
        """Tell nothing more of a queue: it was deleted, and what PostgreSQL knows of it is swept."""
        self._used.pop(number, None)

    def ask(self, queue: ExpiringQueue, expires_ms: int) -> None:
        """Let a queue expire if no node has used it, or look again when it may."""
        self._tasks.start(self._ask(queue, expires_ms))

    async def stop(self) -> None:
        """Forget everything: the epoch has ended, or the node leaves."""
        await self._tasks.stop()
        self._used.clear()
        self._tells = False

    # -- the statements -----------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while used := list(self._used):
            self._used = {}
            await patiently(partial(self._database.acting, "lease", "queues_used", used))
            await asyncio.sleep(TELL_S)
        self._tells = False

    async def _ask(self, queue: ExpiringQueue, expires_ms: int) -> None:
        arguments = queue.number, expires_ms + LATE_MS
        rows = await patiently(lambda: self._database.acting("lease", "queue_unused", *arguments))
        queue.expire(rows[0][0])
