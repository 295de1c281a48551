"""Nodes of a cluster for tests: without a broker, recording the events of the node.

As a program: `python -m tests.cluster.members URL NAME SCHEMA` runs one node, which acts whenever it may, and prints
its events; `lost` with the number of times that it acted after not running for half a lease.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from bitarray import bitarray

from broker.cluster.database import Database
from broker.cluster.database_rows import ClusterMember, LeasedRow, SharedCall
from broker.cluster.hint import Hint
from broker.cluster.node import BOOT_TIME, ClusterNode
from broker.cluster.tenure import TenureState
from tests.deadline import DEADLINE_S

LEASE_MS = 500
CALM_MS = 6000
LEVEL = 7


async def until(condition: Callable[[], object], patience_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 a condition is a plain function
            await asyncio.sleep(0.005)


async def held_by(database: Database) -> list[LeasedRow]:
    """Return all rows that a node holds."""
    return [LeasedRow(*row.values()) for row in await database.acting("lease", "held")]


async def counts_of(database: Database, levels: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the number and the bytes of the free messages by level."""
    return {row[0]: (row[1], row[2]) for row in await database.function("read", "counts", levels)}


class TestNode:
    """A node with a record of its events."""

    __test__ = False

    def __init__(self, url: str, name: str, schema: str, **options: Any) -> None:
        self.told: list[str] = []
        self.reasons: list[str] = []
        self.hints: list[Hint] = []
        self.rows: list[list[LeasedRow]] = []
        self.names: list[str] = []
        self.may_be_lost = asyncio.Event()
        self.may_be_lost.set()
        self.may_catch_up = asyncio.Event()
        self.may_catch_up.set()
        self.database = Database(url, name, schema=schema, handle_hint=self.hints.append)
        self.node = ClusterNode(self.database, self, url=f"amqp://{name}", **{"lease_ms": LEASE_MS} | options)

    async def joining(self) -> None:
        self.told.append("joining")

    async def joined(self, version: int) -> None:
        assert not self.node.may_act()
        await self.may_catch_up.wait()
        self.told.append("joined")

    def paused(self, reason: str) -> None:
        assert not self.node.may_act()
        self.told.append("paused")
        self.reasons.append(reason)

    def activated(self) -> None:
        assert self.node.may_act()
        self.told.append("acts")

    async def lost(self, reason: str) -> None:
        assert not self.node.may_act()
        await self.may_be_lost.wait()
        assert self.node.state is TenureState.LOST, "the next epoch began"
        self.told.append("lost")
        self.reasons.append(reason)

    def members_seen(self, members: list[ClusterMember], *, changed: bool) -> None:
        if changed:
            self.names = sorted(member.node for member in members)

    def reconcile(self, rows: list[LeasedRow]) -> None:
        self.rows.append(rows)


def publish(count: int = 5, *, mine: int = 0) -> SharedCall:
    """Return a call with messages of the level, the first `mine` of which this node keeps."""
    own = bitarray("1" * mine + "0" * (count - mine))
    return SharedCall(
        parts=[b"records"],
        s_level=[LEVEL],
        s_count=[count],
        s_bytes=[7 * count],
        s_mine=[own],
        s_free=[~own],
        s_due=[None],
        s_sizes=[None],
    )


@asynccontextmanager
async def joined(url: str, schema: str, name: str = "a", **options: Any) -> AsyncIterator[TestNode]:
    """Provide a node that has joined. Its lease is so long that it does not pause on a busy machine."""
    made = TestNode(url, name, schema, **{"lease_ms": CALM_MS} | options)
    await made.node.start()
    try:
        yield made
    finally:
        await made.node.close()


class NodeInThread:
    """A node whose loop runs in its own thread, so that a test can stop it."""

    def __init__(self, url: str, name: str, schema: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.thawed = threading.Event()
        self.made = self.do(self._make(url, name, schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thawed.set()
        self.do(self.made.node.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _make(self, url: str, name: str, schema: str) -> TestNode:
        made = TestNode(url, name, schema)
        await made.node.start()
        return made

    def do(self, work: Any) -> Any:
        """Run a coroutine in the thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def freeze(self) -> None:
        """Stop the loop until `thawed` is set."""
        self.loop.call_soon_threadsafe(self.thawed.wait)


class _Process(TestNode):
    """The node of the program."""

    late_acts = 0

    async def joined(self, version: int) -> None:
        await super().joined(version)
        print("joined", self.node.epoch, flush=True)

    async def lost(self, reason: str) -> None:
        await super().lost(reason)
        print("lost", self.late_acts, flush=True)

    async def run(self) -> None:
        await self.node.start()
        ran_s, slept = BOOT_TIME(), False
        while True:
            now_s = BOOT_TIME()
            slept = slept or now_s - ran_s > LEASE_MS / 2000
            if self.node.may_act() and slept:
                self.late_acts += 1
            ran_s = now_s
            await asyncio.sleep(0.001)


if __name__ == "__main__":

    async def _main() -> None:
        await _Process(*sys.argv[1:]).run()

    asyncio.run(_main())
