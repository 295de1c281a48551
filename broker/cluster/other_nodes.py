"""The other nodes, as the newest beat shows them: count out the dead ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.cluster.database import Database
from broker.cluster.database_rows import ClusterMember
from broker.cluster.errors import ClusterError, NameTaken, Unreachable
from broker.cluster.hint import LOOK, Hint
from broker.cluster.node_events import NodeEvents
from broker.cluster.observer import BEATS_PER_LEASE, Observer, Sighting
from broker.event_log import get_logger
from broker.tasks import Tasks

__all__ = ["OtherNodes"]

_log = get_logger()


class OtherNodes:
    """The members of the cluster, as this node's beats show them."""

    def __init__(
        self,
        database: Database,
        events: NodeEvents,
        lease_s: float,
        clock: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        """`tasks` are those of the node: it counts out beside its beats, which must not wait for anything."""
        self.members: list[ClusterMember] = []
        self._database = database
        self._events = events
        self._lease_s = lease_s
        self._clock = clock
        self._tasks = tasks
        self._observer = Observer(lease_s)
        self._counting_out: set[tuple[str, int]] = set()

    def begin(self) -> None:
        """Forget what was seen, as this node has a new epoch."""
        self._observer = Observer(self._lease_s)

    def failed(self) -> None:
        """Note that this node could not look."""
        self._observer.failed()

    def looked(self, sent_s: float, now_s: float, members: list[ClusterMember]) -> None:
        """Take the answer to a beat, report the nodes that came and went, and count out the dead ones."""
        others = [self._sighting(member) for member in members if member.node != self._database.node]
        dead = self._observer.looked(sent_s, now_s, others)
        before = {(member.node, member.epoch) for member in self.members}
        now = {(member.node, member.epoch): member for member in members}
        self.members = members
        self._events.members_seen(members)
        if now.keys() != before:
            self._events.members_changed(members)
        if before - now.keys():
            self._database.heard(Hint(LOOK))  # what they held is free
        for sighting in dead:
            key = sighting.node, sighting.epoch
            if key not in self._counting_out:
                self._counting_out.add(key)
                self._tasks.start(self._count_out_beside(now[key]))

    async def end_namesake(self) -> None:
        """Count out the former epoch of this node's name when it is dead. Raises: NameTaken, if it lives."""
        observer = Observer(self._lease_s)
        beats: dict[int, int] = {}
        while True:
            sent_s = self._clock()
            member = await self._member_of(self._database.node)
            if member is None:
                return
            if beats.setdefault(member.epoch, member.beats) != member.beats:
                raise NameTaken(f"another broker is the node {member.node} ({member.url}): give this one another name")
            if observer.looked(sent_s, self._clock(), [self._sighting(member)]):
                await self._count_out(member)
                return
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)

    async def count_out_now(self, name: str) -> bool:
        """Count out a node unless it beats within two of its intervals. Return False if it does, or is no member.

        Raises: Fenced; Unreachable; DatabaseRefused.
        """
        member = await self._member_of(name)
        if member is None or name == self._database.node:
            return False
        await asyncio.sleep(2 * self._sighting(member).lease_s / BEATS_PER_LEASE)
        return await self._count_out(member)

    def facts(self, now_s: float) -> list[dict[str, Any]]:
        """Return what each node reported, JSON-ready, and how long its beats have stood still.

        While this node does not reach the database the others are `unknown`.
        """
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

    def _sighting(self, member: ClusterMember) -> Sighting:
        lease_s = member.reports.get("lease_ms", self._lease_s * 1000) / 1000
        return Sighting(member.node, member.epoch, member.beats, lease_s)

    async def _member_of(self, name: str) -> ClusterMember | None:
        found = [member for member in await self._database.members() if member.node == name]
        return found[0] if found else None

    async def _count_out_beside(self, dead: ClusterMember) -> None:
        try:
            await self._count_out(dead)
        except Unreachable as error:  # the next look finds it dead again
            _log.warning("node.not_counted_out", node=dead.node, epoch=dead.epoch, reason=str(error))
        except ClusterError as error:
            _log.error("node.not_counted_out", node=dead.node, epoch=dead.epoch, reason=str(error))
        finally:
            self._counting_out.discard((dead.node, dead.epoch))

    async def _count_out(self, dead: ClusterMember) -> bool:
        """Count a node out, and return False if it lives, or if another node was quicker."""
        backstop = self._tasks.start(self._end_sessions(dead.node))
        try:
            done = await self._database.count_out(dead)
        finally:
            backstop.cancel()
        if done:
            _log.warning("node.counted_out", node=dead.node, epoch=dead.epoch)
        return done

    async def _end_sessions(self, node: str) -> None:
        """End the sessions of a dead node whose call does not end: it may hang in sending its result."""
        await asyncio.sleep(self._lease_s)
        try:
            await self._database.end_sessions(node)
        except ClusterError as error:
            _log.warning("node.sessions_not_ended", node=node, reason=str(error))
