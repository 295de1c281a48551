"""Inquiries about whole queues, answered by PostgreSQL. Counts requested in one step of the loop are read together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.cluster.data_path import DataPath
from broker.cluster.database import Database
from broker.cluster.database_rows import ClusterMember
from broker.cluster.errors import ClusterError, Fenced, StatementRefused
from broker.cluster.link import patiently
from broker.core.postponed import NODE_LOST
from broker.core.queue.queue import Queue
from broker.tasks import Tasks

REPORT_S: Final = 0.1  # between two reports of uses
LATE_MS: Final = 200  # a queue expires this much later, so that other nodes have reported their uses


class QueueInquiries:
    """Send a node's inquiries to PostgreSQL. The answer is StatementRefused if it refuses, Fenced if the epoch ends.
    Shapes: ``elsewhere`` maps levels to their numbers of ready messages on other nodes, as of the last heartbeats.
    """

    def __init__(self, data: DataPath, fail: Callable[[BaseException], None]) -> None:
        self._data = data
        self._database = data.database
        self._counting: list[tuple[Queue, Callable[..., None]]] = []
        self._unanswered: dict[Callable[..., None], bool] = {}
        self._tasks = Tasks(fail)
        self.elsewhere: dict[int, int] = {}

    def count(self, queue: Queue, answered: Callable[[tuple[int, int, int] | ClusterError], None]) -> None:
        """Call `answered` with the numbers of ready messages, consumers and unacked messages of a queue."""
        self._counting.append((queue, self._once(answered)))
        if len(self._counting) == 1:
            self._tasks.start(self._count())

    def fetch(self, queue: Queue, answered: Callable[..., None]) -> None:
        """Fetch a message from each level of a queue, and call `answered` when they have arrived or there is none."""
        self._tasks.start(self._fetch(queue, self._once(answered)))

    def purge(self, queue: Queue, answered: Callable[[int | ClusterError], None]) -> None:
        """Drop the free messages of a queue, and call `answered` with their number."""
        self._tasks.start(self._purge(queue, self._once(answered)))

    def record_reports(self, members: Iterable[ClusterMember]) -> None:
        self.elsewhere = {}
        for member in members:
            if member.node != self._database.node:
                for level, ready in member.reports.get("ready", {}).items():
                    self.elsewhere[int(level)] = self.elsewhere.get(int(level), 0) + ready

    def forget(self) -> None:
        """Stop asking, because the epoch has ended or the node leaves. See `answer_lost`."""
        self._counting.clear()
        self._tasks.cancel()

    def answer_lost(self) -> None:
        """Answer remaining inquiries, which are those of operators, with the loss of the node."""
        for answered in list(self._unanswered):
            self._answer(answered, Fenced(NODE_LOST))

    def _once(self, answered: Callable[..., None]) -> Callable[..., None]:
        """Return a function that passes its first call on to `answered`. If the node is lost, answer Fenced."""
        self._unanswered[answered] = True
        if not self._database.epoch:  # only operators ask while the node joins again
            asyncio.get_running_loop().call_soon(self._answer, answered, Fenced(NODE_LOST))
        return partial(self._answer, answered)

    def _answer(self, answered: Callable[..., None], *answer: object) -> None:
        if self._unanswered.pop(answered, False):
            answered(*answer)

    async def _count(self) -> None:
        await asyncio.sleep(0)  # so that all inquiries of this step of the loop are sent together
        counting, self._counting = self._counting, []
        await self._data.drain()
        node = self._database.node  # the consumers of this node are counted below, because some may have just left
        numbers = list(dict.fromkeys([number for queue, _ in counting for number in queue.numbers]))
        call = partial(self._database.function, "read", "queue_counts", node, numbers)
        try:
            rows = await patiently(call)
        except StatementRefused as error:
            for _, answered in counting:
                answered(error)
            return
        found: dict[int, tuple[int, int, int]] = {row[0]: (row[1], row[2], row[3]) for row in rows}
        for queue, answered in counting:
            ready = unacked = 0
            by_priority: dict[int, int] = {}
            for number in queue.numbers:
                messages, _, held = found[number]
                if messages or held:
                    queue.level_numbered(number)
                    elsewhere = min(self.elsewhere.get(number, 0), held)
                    by_priority[number] = messages + elsewhere
                    ready += messages + elsewhere
                    unacked += held - elsewhere
            if queue.strict:
                for level in queue.levels:
                    by_priority[level.number] = by_priority.get(level.number, 0) + level.manager.ready
                queue.note_ready({level.priority: by_priority[level.number] for level in queue.levels})
            consumers = found[queue.number][1] + len(queue.consumers)
            answered((ready + queue.ready, consumers, unacked + queue.unacked))

    async def _fetch(self, queue: Queue, answered: Callable[..., None]) -> None:
        await self._data.drain()  # so that messages that the client published before can be fetched
        try:
            await patiently(lambda: self._data.find_levels(queue))
            self._data.fetch(queue, answered)
        except StatementRefused as error:
            answered(error)

    async def _purge(self, queue: Queue, answered: Callable[[int | ClusterError], None]) -> None:
        await self._data.drain()
        try:
            purged = await patiently(partial(self._database.purge, queue.numbers))
            answered(sum(purged.values()))
        except StatementRefused as error:
            answered(error)


class UnusedQueues:
    """Report the uses of queues that expire when unused, and ask whether a queue has expired on all nodes."""

    def __init__(self, database: Database, fail: Callable[[BaseException], None]) -> None:
        self._database = database
        self._used: dict[int, None] = {}
        self._reports = False
        self._tasks = Tasks(fail)

    def note(self, number: int) -> None:
        """Record that a queue was used on this node."""
        self._used[number] = None
        if not self._reports:
            self._reports = True
            self._tasks.start(self._report())

    def forget(self, number: int) -> None:
        """Stop reporting uses of a queue, because it was deleted."""
        self._used.pop(number, None)

    def ask(self, number: int, expires_ms: int, answered: Callable[[int], None]) -> None:
        """Ask whether a queue has expired on all nodes; `answered` is called with the milliseconds left, or 0."""
        self._tasks.start(self._ask(number, expires_ms, answered))

    async def stop(self) -> None:
        """Discard all state, because the epoch has ended or the node leaves."""
        await self._tasks.stop()
        self._used.clear()
        self._reports = False

    # -- the statements -----------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        while used := list(self._used):
            self._used = {}
            await self._report_uses(used)
            await asyncio.sleep(REPORT_S)
        self._reports = False

    async def _report_uses(self, used: list[int]) -> None:
        """Report uses; if PostgreSQL refuses them, report them one by one."""
        try:
            await patiently(partial(self._database.acting, "lease", "queues_used", used))
        except StatementRefused:
            for number in used if len(used) > 1 else ():
                await self._report_uses([number])

    async def _ask(self, number: int, expires_ms: int, answered: Callable[[int], None]) -> None:
        arguments = number, expires_ms + LATE_MS
        try:
            rows = await patiently(lambda: self._database.acting("lease", "queue_unused", *arguments))
            answered(rows[0][0])
        except StatementRefused:
            answered(expires_ms)  # the next inquiry follows after this time
