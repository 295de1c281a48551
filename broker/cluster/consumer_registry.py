"""The registry of the consumers of shared queues in PostgreSQL: their number on each node, and the active node.

A consumer is registered before it starts, so that an exclusive one is alone on all nodes, and removed after its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Protocol

from broker.cluster.database import Database
from broker.cluster.errors import StatementRefused
from broker.cluster.hint import Hint
from broker.cluster.link import patiently
from broker.cluster.shared_level import SharedLevel
from broker.core.queue.consumer_ring import ConsumerRing
from broker.core.queue.level import Level
from broker.tasks import Tasks, WakeUp

LOOK_S: Final = 1.0
CONSUMERS: Final = "consumers"  # the hint that the active node of some levels may have changed
Answered = Callable[[bool | StatementRefused], None]


class RegisteredQueue(Hashable, Protocol):
    """A queue as the registry sees it. See `SharedQueue`."""

    number: int
    deleted: bool
    levels: tuple[Level, ...]
    consumers: ConsumerRing

    def wake(self) -> None: ...
    def abandoned(self) -> None: ...


class ConsumerRegistry:
    """Register the consumers of one node, one statement at a time."""

    def __init__(
        self, database: Database, find: Callable[[int], RegisteredQueue | None], fail: Callable[[BaseException], None]
    ) -> None:
        """`find` returns the queue of a level; `fail` ends the epoch."""
        self._database = database
        self._find = find
        self.registered: dict[RegisteredQueue, int] = {}  # the consumers of each queue that has any on this node
        self._arriving: list[tuple[RegisteredQueue, bool, int, Answered]] = []
        self._changed: dict[RegisteredQueue, None] = {}
        self._waiting: dict[int, RegisteredQueue] = {}  # by number: another node has the single active consumer
        self._look_s = 0.0  # when `_look` is due
        self._has_orphans = False
        self._work = WakeUp()
        self._tasks = Tasks(fail)

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Stop and discard all state, because the epoch has ended or the node leaves."""
        await self._tasks.stop()
        self.registered.clear()
        self._arriving.clear()
        self._changed.clear()
        self._waiting.clear()

    def register(self, queue: RegisteredQueue, exclusive: bool, room: int, answered: Answered) -> None:
        """Register one consumer, which has room for `room` messages. Call `answered` with whether it may start, or with
        the reason for a permanent refusal; the consumer must start within that call.
        """
        self._arriving.append((queue, exclusive, room, answered))
        self._work.set()

    def left(self, queue: RegisteredQueue) -> None:
        """Unregister the consumers that a queue no longer has."""
        self._changed[queue] = None
        self._work.set()

    def look_for_orphans(self) -> None:
        """Find queues whose last consumer died with its node, because they may be auto-delete."""
        self._has_orphans = True
        self._work.set()

    def handle_hint(self, hint: Hint) -> None:
        """Look up the active nodes again if one may have changed for a queue whose consumers wait here."""
        if hint.kind == CONSUMERS and any(level in self._waiting for level in hint.levels):
            self._look_s = 0.0
            self._work.set()

    # -- the statements -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._work.wait(LOOK_S if self._waiting or self._changed or self._has_orphans else None)
            while self._arriving:
                await self._add(*self._arriving.pop(0))
            changed, self._changed = self._changed, {}
            for queue in changed:
                try:
                    await self._remove(queue)
                except StatementRefused:
                    self._changed[queue] = None
            if self._has_orphans:
                self._has_orphans = False
                try:
                    await self._adopt_orphans()
                except StatementRefused:
                    self._has_orphans = True
            with suppress(StatementRefused):
                await self._look()

    async def _add(self, queue: RegisteredQueue, exclusive: bool, room: int, answered: Answered) -> None:
        if queue.deleted:
            answered(True)  # the method finds that the queue does not exist
            return
        arguments = (queue.number, exclusive, self.registered.get(queue, 0), room)
        try:
            rows = await patiently(lambda: self._database.acting("lease", "consumer_add", *arguments))
        except StatementRefused as error:
            answered(error)
            return
        granted, active = bool(rows[0]["granted"]), bool(rows[0]["active"])
        if granted:
            self.registered[queue] = self.registered.get(queue, 0) + 1
            self._note_active(queue, active=active)
        answered(granted)
        if granted and self.registered[queue] > len(queue.consumers):  # the consumer could not start
            self._changed[queue] = None

    async def _remove(self, queue: RegisteredQueue) -> None:
        known = self.registered.get(queue, 0)
        count = known - len(queue.consumers)
        if count <= 0:
            return
        rows = await patiently(lambda: self._database.acting("lease", "consumer_remove", queue.number, count, known))
        left = self.registered[queue] = known - count
        if not left:
            del self.registered[queue]
            self._waiting.pop(queue.number, None)
        if queue.deleted:
            return
        if not rows[0]["total"] and not queue.consumers:
            queue.abandoned()
        elif rows[0]["active_node"] not in (None, self._database.node):
            await self._database.notify(Hint(CONSUMERS, 0, [queue.number]))

    async def _adopt_orphans(self) -> None:
        """Delete auto-delete queues whose consumers died with their node. If several nodes try, the first succeeds."""
        rows = await patiently(lambda: self._database.function("read", "orphans"))
        levels = [row[0] for row in rows]
        for level in levels:
            queue = self._find(level)
            if queue is not None and not queue.consumers:
                queue.abandoned()
        if levels:
            await patiently(lambda: self._database.acting("lease", "orphans_done", levels))
            self.look_for_orphans()  # one statement returns only some of the queues

    async def _look(self) -> None:
        """Find out which node has the single active consumer, for each queue whose consumers on this node wait."""
        now_s = asyncio.get_running_loop().time()
        if not self._waiting or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        numbers = list(self._waiting)
        rows = await patiently(lambda: self._database.function("read", "consumers", numbers))
        for row in rows:
            queue = self._waiting.get(row["level"])
            if queue is not None:
                self._note_active(queue, active=row["active_node"] in (None, self._database.node))

    def _note_active(self, queue: RegisteredQueue, *, active: bool) -> None:
        if active:
            self._waiting.pop(queue.number, None)
        else:
            self._waiting[queue.number] = queue
        for level in queue.levels:
            if isinstance(level, SharedLevel):
                level.set_elsewhere(not active)
        if active:
            queue.wake()
