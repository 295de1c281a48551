"""The data path of a node: its shared levels, batches and their calls, leases and chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from broker.cluster.caller import Caller
from broker.cluster.chunk import Chunk, DamagedChunk
from broker.cluster.chunk_reader import ChunkReader
from broker.cluster.database import Database
from broker.cluster.database_rows import LeasedRow
from broker.cluster.errors import ClusterError, Unreachable
from broker.cluster.leases import Leases
from broker.cluster.shared_level import SharedLevel, SharedLevels
from broker.core.queue.queue import Queue


class DataPath:
    """Move the messages of all vhosts of one node to the database and back."""

    def __init__(
        self, database: Database, loop: asyncio.AbstractEventLoop, *, failed: Callable[[BaseException], None]
    ) -> None:
        """`failed` ends the epoch: nothing may be confirmed after a defect."""
        self.database = database
        self._loop = loop
        self._fail = failed
        self.levels = SharedLevels(self._wake)
        self.reader = ChunkReader(database)
        self.leases = Leases(self.levels, database, self.reader, loop, fail=failed)
        self.caller = Caller(
            self.levels, database, loop, freed=self._freed, returned=self.leases.take_back, fail=failed
        )
        self.drain = self.caller.drain
        self._working_on: list[Sequence[LeasedRow]] = []
        self._freed_also: Callable[[Sequence[int]], None] = lambda _: None

    # -- for the engines of the vhosts --------------------------------------------------------------------------------

    def touch(self, queue: Queue) -> None:
        """Check the levels of a queue again, because its consumers or levels have changed."""
        for level in queue.levels:
            if isinstance(level, SharedLevel):
                self.levels.touch(level)

    def ask(self, queue: Queue) -> None:
        """Check those levels of a queue that may have free messages, because its consumers may have room."""
        for level in queue.levels:
            if isinstance(level, SharedLevel) and level.demand.free:
                self.levels.touch(level)

    async def find_levels(self, queue: Queue) -> None:
        """Create the levels of a queue that have messages and were first used by another node. Raises: Unreachable."""
        if queue.strict:
            for row in await self.database.function("read", "levels_of", queue.number):
                queue.level_numbered(row[0])

    def fetch(self, queue: Queue, then: Callable[..., None]) -> None:
        """Fetch from each level for basic.get; call `then` in a later step of the loop, with an error if refused."""
        shared = [level for level in reversed(queue.levels) if isinstance(level, SharedLevel)]
        left = len(shared)
        refusals: list[ClusterError] = []

        def answered(*refusal: ClusterError) -> None:
            nonlocal left
            left -= 1
            refusals.extend(refusal)
            if not left:
                then(*refusals[:1])

        for level in shared:
            self.leases.fetch(level, answered)
        if not shared:
            self._loop.call_soon(then)

    def on_freed(self, freed: Callable[[Sequence[int]], None]) -> None:
        """Set the function that is called with the levels in which a call of this node committed free messages."""
        self._freed_also = freed

    @asynccontextmanager
    async def working_on(self, rows: Sequence[LeasedRow]) -> AsyncIterator[Mapping[int, Chunk | DamagedChunk]]:
        """Yield the chunks of rows that another part of the node has leased, and hold the rows as `keeping` does."""
        async with self.keeping(rows):
            yield await self.reader.read(rows)

    @asynccontextmanager
    async def keeping(self, rows: Sequence[LeasedRow]) -> AsyncIterator[None]:
        """Return a context in which a part of the node other than `leases` holds leased rows.

        If a statement fails although the connections stay open, they are closed, because only the reconciliation after
        a lost connection finds the rows.
        """
        self._working_on.append(rows)
        try:
            yield
        except Unreachable as error:
            self.database.link.drop(str(error))
            raise
        finally:
            self._working_on.remove(rows)

    # -- for the node -------------------------------------------------------------------------------------------------

    def reconcile(self, rows: Sequence[LeasedRow]) -> None:
        """Compare the rows that this node has leased in PostgreSQL with its own state, while no call or lease runs."""
        self.leases.reconcile(rows, [row for working in self._working_on for row in working])

    def forget_all(self) -> None:
        """Drop the collected batch and all leases, because the epoch of the node has ended."""
        self.caller.forget()
        self.leases.forget_all()

    async def close(self) -> None:
        """Stop; collected work that was not drained is lost."""
        await self.caller.close()
        await self.leases.close()

    # -- internal -----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.call_soon(self._check)

    def _check(self) -> None:
        try:
            self.leases.turn()
            self.caller.start_if_due()
        except Exception as error:  # noqa: BLE001 - a defect: nothing may be confirmed after it
            self._fail(error)

    def _freed(self, number: int, levels: list[int], parts: Sequence[bytes]) -> None:
        self.reader.cache(number, parts)
        self.leases.freed(number, levels)
        self._freed_also(levels)
