"""The other nodes, as of the newest heartbeat. This node declares silent ones dead.

A node is dead when it has sent no heartbeat for its lease, or this node's if that is longer, plus a margin. Only time
in which this node's own polls of the database succeeded counts: a failed or late poll restarts all counts. So neither
an outage of the database nor a pause of this node makes another node dead.

Units: seconds of a clock that is never set (CLOCK_BOOTTIME); the caller passes the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.cluster.database import Database
from broker.cluster.database_rows import ClusterMember
from broker.cluster.errors import ClusterError, NameTaken, Unreachable
from broker.cluster.hint import LOOK, Hint
from broker.event_log import get_logger
from broker.tasks import Tasks

_log = get_logger()

BEATS_PER_LEASE: Final = 6
MARGIN_SHARE: Final = 1 / 6  # of the lease, because the clocks of two machines do not run equally fast
GAP_SHARE: Final = 1 / 2  # of the lease: after a longer time between two polls, all counts restart


class Observer:
    """The heartbeats of the other nodes, as observed by this node.

    Invariant: a node is dead only if its last observed heartbeat was sent longer ago than its lease. Before it is
        declared dead, the number of its heartbeats is compared again under a lock, so a node that has sent another
        heartbeat stays a member.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._polled_s: float | None = None  # when the last successful poll was answered
        self._nodes: dict[tuple[str, int], tuple[int, float]] = {}  # the number of heartbeats, and when it last changed

    def failed(self) -> None:
        """Restart all counts, because a poll of the database failed."""
        self._polled_s = None

    def record_poll(self, sent_s: float, answered_s: float, seen: Iterable[ClusterMember]) -> list[ClusterMember]:
        """Record the answer to a poll sent at `sent_s`, and return the nodes that are dead."""
        if self._polled_s is None or answered_s - self._polled_s > self._lease_s * GAP_SHARE:
            self._nodes.clear()
        self._polled_s = answered_s
        before, self._nodes = self._nodes, {}
        dead = []
        for member in seen:
            key = member.node, member.epoch
            beats, since_s = before.get(key, (-1, answered_s))
            if beats != member.beats:
                since_s = answered_s
            elif sent_s - since_s > max(member.lease_s, self._lease_s) * (1 + MARGIN_SHARE):
                dead.append(member)
            self._nodes[key] = member.beats, since_s
        return dead

    def age_s(self, node: str, epoch: int, now_s: float) -> float:
        """Return how long ago this node observed the last new heartbeat of a node."""
        _, since_s = self._nodes.get((node, epoch), (0, now_s))
        return max(now_s - since_s, 0.0)

    def sees(self, now_s: float) -> bool:
        """Return whether the newest poll succeeded and is recent; otherwise the state of the other nodes is unknown."""
        return self._polled_s is not None and now_s - self._polled_s <= self._lease_s * GAP_SHARE


class OtherNodes:
    """The members of the cluster, as read with this node's heartbeats."""

    def __init__(self, database: Database, lease_s: float, clock: Callable[[], float], tasks: Tasks) -> None:
        """`tasks` runs the removal of dead nodes, because heartbeats must not wait for it."""
        self.members: list[ClusterMember] = []
        self._database = database
        self._lease_s = lease_s
        self._clock = clock
        self._tasks = tasks
        self._observer = Observer(lease_s)
        self._counting_out: set[tuple[str, int]] = set()

    def begin(self) -> None:
        """Discard all observations, because this node has a new epoch."""
        self._observer = Observer(self._lease_s)

    def failed(self) -> None:
        self._observer.failed()

    def record_poll(self, sent_s: float, now_s: float, members: list[ClusterMember]) -> bool:
        """Record the answer to a heartbeat, declare silent nodes dead, and return whether the membership changed."""
        others = [member for member in members if member.node != self._database.node]
        dead = self._observer.record_poll(sent_s, now_s, others)
        before = {(member.node, member.epoch) for member in self.members}
        now = {(member.node, member.epoch) for member in members}
        self.members = members
        if before - now:
            self._database.handle_hint(Hint(LOOK))  # the messages leased to departed members are free
        for member in dead:
            key = member.node, member.epoch
            if key not in self._counting_out:
                self._counting_out.add(key)
                self._tasks.start(self._count_out_dead(member))
        return now != before

    async def end_namesake(self) -> None:
        """Declare the former epoch with this node's name dead. Raises: NameTaken, if it is alive; Unreachable."""
        observer = Observer(self._lease_s)
        beats: dict[int, int] = {}
        while True:
            sent_s = self._clock()
            member = await self._member_of(self._database.node)
            if member is None:
                return
            if beats.setdefault(member.epoch, member.beats) != member.beats:
                raise NameTaken(f"another broker is the node {member.node} ({member.url}): give this one another name")
            if observer.record_poll(sent_s, self._clock(), [member]):
                await self._count_out(member)
                return
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)

    async def count_out_now(self, name: str) -> bool:
        """Declare a node dead unless it sends a heartbeat within two of its intervals. Return False if it does, is not
        a member, or is this node. Raises: Fenced; Unreachable; DatabaseRefused.
        """
        member = await self._member_of(name)
        if member is None or name == self._database.node:
            return False
        await asyncio.sleep(2 * (member.lease_s or self._lease_s) / BEATS_PER_LEASE)
        return await self._count_out(member)

    def facts(self, now_s: float) -> list[dict[str, Any]]:
        """Return each node's last report, ready for JSON, with its state and the age of its last heartbeat."""
        return [self._facts_of(member, now_s) for member in self.members]

    def _facts_of(self, member: ClusterMember, now_s: float) -> dict[str, Any]:
        age_s = self._observer.age_s(member.node, member.epoch, now_s)
        seen = "silent" if age_s > self._lease_s / 2 else "alive"
        return member.reports | {
            "node": member.node,
            "epoch": member.epoch,
            "url": member.url,
            "state": seen if self._observer.sees(now_s) else "unknown",
            "beat_age_ms": round(age_s * 1000),
            "topology": member.applied_version,
        }

    async def _member_of(self, name: str) -> ClusterMember | None:
        found = [member for member in await self._database.members() if member.node == name]
        return found[0] if found else None

    async def _count_out_dead(self, dead: ClusterMember) -> None:
        try:
            await self._count_out(dead)
        except Unreachable as error:  # the next poll finds it dead again
            _log.warning("node.not_counted_out", node=dead.node, epoch=dead.epoch, reason=str(error))
        except ClusterError as error:
            _log.error("node.not_counted_out", node=dead.node, epoch=dead.epoch, reason=str(error))
        finally:
            self._counting_out.discard((dead.node, dead.epoch))

    async def _count_out(self, dead: ClusterMember) -> bool:
        """Declare a node dead. Return False if it has sent another heartbeat, or is not a member any more."""
        backstop = self._tasks.start(self._end_sessions(dead.node))
        try:
            done = await self._database.count_out(dead)
        finally:
            backstop.cancel()
        if done:
            _log.warning("node.counted_out", node=dead.node, epoch=dead.epoch)
        return done

    async def _end_sessions(self, node: str) -> None:
        """After a lease, terminate the sessions of a dead node: they may be blocked while sending results."""
        await asyncio.sleep(self._lease_s)
        try:
            await self._database.end_sessions(node)
        except ClusterError as error:
            _log.warning("node.sessions_not_ended", node=node, reason=str(error))
