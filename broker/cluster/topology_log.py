"""The topology log: every node applies the same changes of exchanges, queues and bindings in the same order.

Appends never conflict: whether a change has an effect is decided when it is applied, on every node in the same way. So
two nodes may declare the same queue at the same time: one of the changes has an effect, and the method that proposed
the other one finds the existing queue.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from broker.cluster.database import Database
from broker.cluster.errors import StatementRefused, Unreachable
from broker.cluster.hint import APPLIED, LOOK, TOPOLOGY, Hint
from broker.cluster.link import patiently
from broker.cluster.topology_changes import TopologyChange, change_of
from broker.core.postponed import NODE_LOST
from broker.tasks import Tasks, WakeUp

BATCH_PROPOSALS: Final = 200  # in one append, which a node applies in one step of its loop
SNAPSHOT_VERSIONS: Final = 1000  # versions between two snapshots
LOOK_S: Final = 1.0  # between two checks of the log without a hint
WAIT_S: Final = 0.1  # between two checks of the members while an answer waits for them
RETRY_S: Final = 0.1


class Extra(NamedTuple):
    """What an append tells PostgreSQL: the levels of deleted queues, and the arguments of set_level for new ones."""

    dropped: Sequence[int]
    limits: Sequence[dict[str, Any]]


class Proposal(NamedTuple):
    """Changes to append; see `TopologyLog.propose`."""

    changes: list[TopologyChange]
    done: Callable[[], None]
    unused: int | None
    refused: Callable[[str], None]


class Barrier:
    """Answer proposals when every member at the time of their version has applied it or left. Members are identified by
    their epochs, which are unique.
    Invariant: proposals are answered in the order of their versions.
    """

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        self._departed: set[int] = set()
        self._waiting: deque[tuple[int, Collection[int], Sequence[Proposal]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, version: int, epochs: Collection[int], proposals: Sequence[Proposal]) -> None:
        """Answer proposals once these members have applied their version, which is newer than all waiting versions."""
        self._waiting.append((version, epochs, proposals))
        self._pass()

    def applied(self, epoch: int, version: int) -> None:
        """Record that a member has applied all changes up to a version."""
        if version > self._applied.get(epoch, -1):
            self._applied[epoch] = version
            self._pass()

    def awaited(self) -> set[int]:
        """Return the members for which proposals wait."""
        return {epoch for _, epochs, _ in self._waiting for epoch in epochs} - self._departed

    def departed(self, epochs: Collection[int]) -> None:
        """Stop waiting for members that are dead or have left."""
        self._departed.update(epochs)
        for epoch in epochs:
            self._applied.pop(epoch, None)
        self._pass()

    def clear(self) -> list[Proposal]:
        """Discard everything, and return the proposals without an answer."""
        unanswered = [proposal for _, _, proposals in self._waiting for proposal in proposals]
        self._applied.clear()
        self._departed.clear()
        self._waiting.clear()
        return unanswered

    def _pass(self) -> None:
        while self._waiting:
            version, epochs, proposals = self._waiting[0]
            if any(self._applied.get(epoch, -1) < version for epoch in epochs if epoch not in self._departed):
                break
            self._waiting.popleft()
            for proposal in proposals:
                proposal.done()


class FollowedTopology(Protocol):
    """The exchanges, queues and bindings of this node. See `SharedTopology`."""

    async def prepare(self, changes: Sequence[TopologyChange]) -> Extra: ...
    def apply(self, changes: list[TopologyChange]) -> None: ...
    def note_made(self, changes: Iterable[TopologyChange]) -> None: ...
    def take_dropped(self) -> Sequence[int]: ...
    def clear(self) -> None: ...
    def snapshot(self) -> Iterable[list[TopologyChange]]: ...
    async def delete_orphans(self, alive: Callable[[], Awaitable[Iterable[int]]]) -> None: ...


class _Sent(NamedTuple):
    """An append whose result is not known yet."""

    sequence: int
    proposals: list[Proposal]
    arguments: tuple[Sequence[bytes], Sequence[int | None], Extra]


class TopologyLog:
    """Propose changes, apply those of all nodes, and answer when every member has applied them. Invariant: ``applied``
    is the version up to which all changes are applied here. ``reported`` is raised to it once all messages routed
    before are committed; no proposal is answered before every member has reported its version.
    """

    def __init__(
        self,
        database: Database,
        topology: FollowedTopology,
        *,
        flushed: Callable[[], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`flushed` waits until all messages routed before the call are committed; `fail` ends the epoch."""
        self._database = database
        self._topology = topology
        self._flushed = flushed
        self.applied = 0
        self.reported = 0
        self.barrier = Barrier()
        self._lost: list[Proposal] = []  # without an answer when the epoch ended
        self._proposals: list[Proposal] = []
        self._sent: _Sent | None = None
        self._sequence = 0
        self._dropped: set[int] = set()  # levels of deleted queues that `drop_levels` must still report
        self._alone = 0  # how many of the next proposals to append singly, because PostgreSQL refused one of them
        self._is_behind = False
        self._work = WakeUp()
        self._to_report = WakeUp()
        self._tasks = Tasks(fail)
        self._takes_part = False
        self._snapshot: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Build the topology from the beginning of the log, before the node joins. Raises: Unreachable."""
        self._topology.clear()
        self.applied = self.reported = 0
        await self._catch_up()

    async def start(self) -> None:
        """Catch up and report, because the node has joined. Raises: Unreachable; Fenced."""
        await self._catch_up()
        self._sequence = 0
        self._is_behind = True
        self._work.set()
        self._to_report.set()
        self._takes_part = True
        for work in (self._run, self._report, self._look, self._sweep):
            self._tasks.start(work())

    async def stop(self) -> None:
        """Stop, because the node leaves or is lost. See `answer_lost`."""
        self._takes_part = False
        await self._tasks.stop()
        self._lost += [*([] if self._sent is None else self._sent.proposals), *self._proposals, *self.barrier.clear()]
        self._proposals.clear()
        self._dropped.clear()
        self._alone = 0
        self._sent = None

    def answer_lost(self) -> None:
        """Refuse the proposals that were not answered in the lost epoch; operators still wait for them."""
        lost, self._lost = self._lost, []
        for proposal in lost:
            proposal.refused(NODE_LOST)

    # -- proposals and hints ------------------------------------------------------------------------------------------

    def propose(
        self,
        changes: list[TopologyChange],
        done: Callable[[], None],
        *,
        unused: int | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Append changes of one vhost, and call `done` once every member has applied them, up to the first without
        effect. Call `refused` with the reason if PostgreSQL refuses their contents or the node is lost. With `unused`,
        the number of a level, they are appended only if that level has no consumers.
        """
        if self._takes_part:
            self._proposals.append(Proposal(changes, done, unused, refused))
            self._work.set()
        else:
            asyncio.get_running_loop().call_soon(refused, NODE_LOST)

    def handle_hint(self, hint: Hint) -> None:
        """Handle a hint of another node about the topology, or the notice that hints may have been lost."""
        if hint.kind == APPLIED:
            self.barrier.applied(hint.levels[0], hint.number)
        if hint.kind == LOOK or (hint.kind in {APPLIED, TOPOLOGY} and hint.number > self.applied):
            self._look_soon()

    def _look_soon(self) -> None:
        self._is_behind = True
        self._work.set()

    # -- appending and catching up ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            try:
                if self._sent is not None or self._proposals:
                    await self._append()
                elif self._is_behind:
                    self._is_behind = False
                    await self._catch_up()
            except StatementRefused:  # a defect, which ends the epoch, because the other members wait for this one
                raise
            except Unreachable:
                self._is_behind = True
                self._work.set()
                await asyncio.sleep(RETRY_S)

    async def _append(self) -> None:
        """Append the next proposals, or repeat an append that was not answered."""
        if self._sent is None:
            proposals = self._proposals[: 1 if self._alone else BATCH_PROPOSALS]
            certain = [change for one in proposals if one.unused is None for change in one.changes]
            extra = await self._topology.prepare(certain)
            bodies: Sequence[bytes] = [_encoded(one.changes) for one in proposals]
            del self._proposals[: len(proposals)]
            self._alone = max(0, self._alone - 1)
            self._sequence += 1
            self._sent = _Sent(self._sequence, proposals, (bodies, [one.unused for one in proposals], extra))
        sequence, proposals, (bodies, unused, extra) = self._sent
        try:
            rows = await self._database.acting(
                "upkeep", "append", sequence, self.applied, bodies, unused, extra.dropped, extra.limits or None
            )
        except StatementRefused as error:
            self._refuse(proposals, str(error))
            return
        self._sent = None
        version, epochs = rows[-1]["version"], rows[-1]["epochs"]
        if len(epochs) > 1:
            self._tasks.start(self._database.notify(Hint(TOPOLOGY, version)))
        self._apply(rows)
        self._topology.note_made(change for one in proposals for change in one.changes)
        self.barrier.wait(version, epochs, proposals)
        if self._proposals:
            self._work.set()
        self._dropped.update(set(self._topology.take_dropped()).difference(extra.dropped))
        await self._drop_levels(version)
        if version % SNAPSHOT_VERSIONS == 0:
            self._take_snapshot()

    async def _drop_levels(self, version: int) -> None:
        """Mark the levels of deleted queues. Their rows are swept once every member has applied the version. If
        PostgreSQL refuses, a later sweep marks them.
        """
        if levels := sorted(self._dropped):
            with suppress(StatementRefused):
                await patiently(lambda: self._database.acting("upkeep", "drop_levels", version, levels))
                self._dropped.difference_update(levels)

    def _refuse(self, proposals: list[Proposal], reason: str) -> None:
        """Append the proposals of a refused append one by one; if there was only one, refuse it."""
        self._sent = None
        if len(proposals) > 1:
            self._proposals[:0] = proposals
            self._alone = len(proposals)
        else:
            proposals[0].refused(reason)
        self._work.set()

    async def _catch_up(self) -> None:
        self._apply(await self._database.function("listen", "changes_since", self.applied))
        self._topology.take_dropped()  # the nodes that appended the changes drop these levels

    def _apply(self, rows: Iterable[Any]) -> None:
        """Apply versions: each is one append, or a compressed snapshot of all changes up to it."""
        for row in rows:
            version = row["version"]
            if snapshot := row.get("snapshot"):
                self._topology.clear()
                for changes in json.loads(zlib.decompress(snapshot)):
                    self._topology.apply([change_of(change) for change in changes])
            else:
                assert version == self.applied + 1, f"version {version} follows {self.applied}"
                for body in row["bodies"]:
                    self._topology.apply([change_of(change) for change in json.loads(body)])
            self.applied = version
        self._to_report.set()

    # -- background tasks ---------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Report the applied version, once all messages routed before are committed."""
        while True:
            await self._to_report.wait()
            version = self.applied
            if version == self.reported:
                continue
            await self._flushed()
            self.reported = version
            self.barrier.applied(self._database.epoch, version)
            try:
                await self._database.acting("listen", "report", version)
            except Unreachable:  # the next heartbeat reports it
                await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        """Regularly check the log, the members for which proposals wait, and the exclusive queues of departed nodes."""
        loop = asyncio.get_running_loop()
        look_s = loop.time()
        while True:
            await asyncio.sleep(WAIT_S)
            with suppress(Unreachable):
                if self.barrier:
                    await self._look_at_members()
                if loop.time() >= look_s:
                    look_s = loop.time() + LOOK_S
                    self._look_soon()
                    await self._topology.delete_orphans(self.applied_by_member)

    async def _look_at_members(self) -> None:
        awaited = self.barrier.awaited()
        applied = await self.applied_by_member()
        own = self._database.epoch
        for epoch, version in applied.items():
            if epoch != own:
                self.barrier.applied(epoch, version)
        self.barrier.departed(awaited.difference(applied))

    async def applied_by_member(self) -> dict[int, int]:
        """Return the version that each member has applied, by its epoch. Raises: Unreachable."""
        return {row["epoch"]: row["applied"] for row in await self._database.function("listen", "applied")}

    async def sweep(self) -> bool:
        """Delete rows of queues whose deletion every member has applied; return whether more may be left."""
        return bool((await self._database.acting("upkeep", "sweep_dropped"))[0][0])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(Unreachable):
                await self._drop_levels(self.applied)
                while await self.sweep():
                    pass

    def _take_snapshot(self) -> None:
        if self._snapshot is None or self._snapshot.done():
            self._snapshot = self._tasks.start(self._put_snapshot(self.applied, self._topology.snapshot()))

    async def _put_snapshot(self, version: int, changes: Iterable[list[TopologyChange]]) -> None:
        body = await asyncio.get_running_loop().run_in_executor(None, _compressed, changes)
        with suppress(Unreachable):
            await self._database.acting("upkeep", "put_snapshot", version, body)


def _encoded(changes: Iterable[TopologyChange]) -> bytes:
    return json.dumps([change.to_json() for change in changes], separators=(",", ":")).encode()


def _compressed(pieces: Iterable[list[TopologyChange]]) -> bytes:
    return zlib.compress(b"[" + b",".join(map(_encoded, pieces)) + b"]")
