"""A node of the cluster: it joins, sends heartbeats, pauses when its lease ends, and rejoins when it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from broker.amqp.errors import BrokerError
from broker.cluster.database import WENT_BACK, Database
from broker.cluster.database_rows import ClusterMember, LeasedRow
from broker.cluster.errors import ClusterError, Conflict, DatabaseFails, Fenced, StatementRefused
from broker.cluster.other_nodes import BEATS_PER_LEASE, OtherNodes
from broker.cluster.schema import FUNCTION_VERSION
from broker.cluster.tenure import NodeTenure, TenureState
from broker.event_log import get_logger
from broker.tasks import Tasks, first_ended

_log = get_logger()

# A clock that is never set, and counts while the machine sleeps.
BOOT_TIME: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
ANSWER_LEASES: Final = 2  # connections are closed if a heartbeat is unanswered for this many leases
ANSWER_MIN_S: Final = 2.0  # but not before this time, however short the lease is
LEAVE_S: Final = 5.0
TEND_INTERVAL_S: Final = 1.0
CLOCK_BEHIND_MS: Final = 1000  # smaller differences are measurement errors
DEFECTS_MAX: Final = 3  # more defects than this within DEFECTS_S end the broker
DEFECTS_S: Final = 60.0
REJOIN_PAUSE_S: Final = 0.1
REJOIN_PAUSE_MAX_S: Final = 2.0


class NodeEvents(Protocol):
    """The events of a node. See `BrokerNode`."""

    async def joining(self) -> None: ...
    async def joined(self, version: int) -> None: ...
    def paused(self, reason: str) -> None: ...
    def activated(self) -> None: ...
    async def lost(self, reason: str) -> None: ...
    def members_seen(self, members: list[ClusterMember], *, changed: bool) -> None: ...
    def reconcile(self, rows: list[LeasedRow]) -> None: ...


class ClusterNode:
    """One node of a cluster.

    Invariant: `may_act` returns True only while no other node may take over the leases of this one. `NodeEvents.lost`
        has returned before a new epoch begins.
    """

    def __init__(
        self,
        database: Database,
        events: NodeEvents,
        *,
        url: str,
        lease_ms: int = 3000,
        report: Callable[[], dict[str, Any]] = dict,
        applied_version: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = BOOT_TIME,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`report` returns what each heartbeat reports to the other nodes, `applied_version` the version of the
        topology here; `failed` is called with a defect in a task of the node, and ends the broker.
        """
        self.database = database
        self.url = url
        self.lease_ms = lease_ms
        self._events = events
        self._report = report
        self._applied_version = applied_version
        self._clock = clock
        self._lease_s = lease_ms / 1000
        self._interval_s = self._lease_s / BEATS_PER_LEASE
        self._tenure = NodeTenure(self._lease_s)
        self._tasks = Tasks(self._ended)
        self._defects_s: list[float] = []  # the times of the last defects
        self._others = OtherNodes(database, self._lease_s, clock, self._tasks)
        self._is_caught_up = False
        self._offset_ms: float | None = None
        self._is_behind = False  # the database's clock has gone back
        self._round_trip_ms: float | None = None
        self._sent_s: float | None = None  # when the newest answered heartbeat was sent
        self._reason = ""
        self._expiry: asyncio.TimerHandle | None = None
        self._is_lost = asyncio.Event()
        database.link.adapt(self._lease_s)
        database.attach(fenced=self._fenced, reconcile=events.reconcile, topology=applied_version, failed=failed)

    # ---- state

    @property
    def epoch(self) -> int:
        """The newest epoch of this node, which may have ended."""
        return self._tenure.epoch

    @property
    def members(self) -> list[ClusterMember]:
        """All members, this node included, as of the newest heartbeat."""
        return self._others.members

    @property
    def state(self) -> TenureState:
        return self._tenure.state

    def may_act(self) -> bool:
        """Return whether this node may deliver, answer and settle now. Cost: one reading of the clock."""
        return self._is_caught_up and self._tenure.may_act(self._clock())

    def unready(self) -> str:
        """Return why the node is not ready although its heartbeats are answered, or "" if it is ready."""
        waited_s = self.database.link.unanswered_s
        return f"PostgreSQL has not answered a call for {waited_s:.0f} s" if waited_s > self._lease_s else ""

    def now_ms(self) -> float:
        return self._clock() * 1000 + (self._offset_ms or 0.0)

    def facts(self) -> dict[str, Any]:
        """Return the state of the cluster for operators, ready for JSON, as of the newest heartbeat."""
        now_s = self._clock()
        beat_age_ms = None if self._sent_s is None else round((now_s - self._sent_s) * 1000)
        nodes = self._others.facts(now_s)
        for row in nodes:
            if row["node"] == self.database.node:
                own = "alive" if self.state is TenureState.JOINED else self.state.value
                row |= {"state": own, "beat_age_ms": beat_age_ms}
        return {
            "node": self.database.node,
            "epoch": self.epoch,
            "state": self.state.value,
            "schema": self.database.schema,
            "generation": self.database.generation,
            "database": self.database.link.shown,
            "database_ms": self._round_trip_ms if self.database.link.is_up else None,
            "database_trouble": self.database.trouble,
            "database_failures": self.database.failing.count,
            "beat_age_ms": beat_age_ms,
            "lease_ms": self.lease_ms,
            "topology": self._applied_version(),
            "reason": self._reason,
            "nodes": nodes,
        }

    # ---- life

    async def start(self, patience_s: float = 30.0) -> None:
        """Connect, create or upgrade the schema, and join. Raises: NameTaken; Unreachable; DatabaseRefused."""
        await self.database.open(patience_s)
        self._tasks.start(self._beat_forever())
        try:
            try:
                await self._join()
            except Fenced:
                await self._rejoin()
        except BaseException:
            await self.close()
            raise
        self._tasks.start(self._rejoin_when_lost())
        self._tasks.start(self._do_upkeep())

    async def leave(self) -> None:
        """Free everything leased to this node, leave, and close the connections."""
        acted = self.state in {TenureState.JOINED, TenureState.PAUSED}
        self._stop_acting()
        self._tenure.leave()
        await self._tasks.stop()
        if acted:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self.database.leave(self.epoch)
            except (ClusterError, TimeoutError) as error:
                _log.warning("node.not_left", node=self.database.node, epoch=self.epoch, reason=str(error))
            else:
                _log.info("node.left", node=self.database.node, epoch=self.epoch)
        await self.close()

    async def close(self) -> None:
        """Stop without leaving; other nodes declare this one dead when its lease has ended."""
        self._stop_acting()
        await self._tasks.stop()
        await self.database.close()

    async def count_out_now(self, name: str) -> bool:
        """Declare a node dead at an operator's request; return False if it is alive or is not another member.

        Raises: BrokerError.
        """
        try:
            return await self._others.count_out_now(name)
        except ClusterError as error:
            raise BrokerError(f"node '{name}' cannot be counted out now: {error}") from error

    # ---- joining

    async def _join(self) -> None:
        """Join as a new epoch, and act as soon as the broker has caught up.

        Raises: NameTaken; Fenced, if the epoch ended before that; Unreachable; DatabaseRefused.
        """
        await self._events.joining()
        while True:
            sent_s = self._clock()
            try:
                joined = await self.database.join(self.url, FUNCTION_VERSION)
                break
            except Conflict:
                await self._others.end_namesake()
        self.database.begin_epoch(joined.epoch, joined.generation)
        self._is_lost.clear()
        self._tenure.join(joined.epoch, sent_s)
        self._others.begin()
        self._take_time(joined.now_ms, sent_s, self._clock())
        _log.info("node.joined", node=self.database.node, epoch=joined.epoch, generation=joined.generation)
        await self._beat()
        try:
            await first_ended(self._events.joined(joined.version), self._is_lost.wait())
        except ClusterError:
            if not self._is_lost.is_set():
                raise
        if self._is_lost.is_set():
            raise Fenced(self._reason)
        self._is_caught_up = True
        self._set_end()
        if self.may_act():  # a paused node continues with the next answered heartbeat
            self._events.activated()

    async def _rejoin_when_lost(self) -> None:
        while True:
            await self._is_lost.wait()
            await self._rejoin()

    async def _rejoin(self) -> None:
        """End the lost epoch, and try to join as a new one until it succeeds."""
        pause_s, logged = REJOIN_PAUSE_S, ""
        while self._is_lost.is_set():
            if self.state is TenureState.LOST:
                await self._events.lost(self._reason)
                self._tenure.rejoin()
            try:
                await self.database.leave(self.epoch)  # it may still be a member, if the database went back in time
                await self._join()
            except ClusterError as error:
                self._lose(str(error))  # if it joined, but could not catch up
                if str(error) != logged:
                    _log.warning("node.not_rejoined", node=self.database.node, reason=str(error))
                logged = self._reason = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, REJOIN_PAUSE_MAX_S)

    async def _do_upkeep(self) -> None:
        """Correct the cluster's time, delete old results, and empty old chunk tables, once a second."""
        while True:
            await asyncio.sleep(TEND_INTERVAL_S)
            try:
                if self.may_act():
                    if self._is_behind:
                        await self.database.advance_clock(int(self.now_ms()))
                    await self.database.forget()
                    if done := await self.database.turn_ring():
                        _log.debug("ring.turned", node=self.database.node, done=done)
            except (DatabaseFails, StatementRefused) as error:
                _log.error("ring.not_turned", node=self.database.node, reason=str(error))
            except ClusterError:
                pass  # PostgreSQL cannot be reached now, or this epoch is lost: the next iteration tries again

    # ---- heartbeats

    async def _beat_forever(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s = max(next_s + self._interval_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            if self.state in {TenureState.JOINED, TenureState.PAUSED}:
                await self._beat()

    async def _beat(self) -> None:
        """Send one heartbeat, and record the members in the answer."""
        epoch, sent_s = self.epoch, self._clock()
        patience_s = max(ANSWER_LEASES * self._lease_s, ANSWER_MIN_S)
        reports = self._report() | {"lease_ms": self.lease_ms, "database_ms": self._round_trip_ms}
        try:
            async with asyncio.timeout(patience_s):
                pulse = await self.database.beat(self.url, self._applied_version(), reports)
        except TimeoutError:
            self.database.link.drop(f"PostgreSQL did not answer for {patience_s:g} s")
            self._others.failed()
        except Fenced:
            self._others.failed()  # `_fenced` was called
        except ClusterError as error:
            self._reason = str(error)
            self._others.failed()
        else:
            if epoch == self.epoch and self.state in {TenureState.JOINED, TenureState.PAUSED}:
                now_s = self._clock()
                self._round_trip_ms = round((now_s - sent_s) * 1000, 3)
                self._take_time(pulse.now_ms, sent_s, now_s)
                self._sent_s = sent_s
                self._reason = ""
                if pulse.generation != self.database.generation:
                    self._lose(WENT_BACK)
                    return
                self._extend_lease(sent_s, now_s)
                changed = self._others.record_poll(sent_s, now_s, pulse.members)
                self._events.members_seen(pulse.members, changed=changed)

    def _take_time(self, database_ms: int, sent_s: float, answered_s: float) -> None:
        """Follow the database's clock, unless it has gone back: then `_do_upkeep` corrects the cluster's time."""
        offset_ms = database_ms - (sent_s + answered_s) * 500
        self._is_behind = self._offset_ms is not None and self._offset_ms - offset_ms > CLOCK_BEHIND_MS
        if not self._is_behind:
            self._offset_ms = offset_ms

    def _extend_lease(self, sent_s: float, now_s: float) -> None:
        has_resumed = self._tenure.answered(self.epoch, sent_s, now_s)
        self._set_end()
        if has_resumed:
            _log.info("node.resumed", node=self.database.node, epoch=self.epoch)
            if self._is_caught_up:
                self._events.activated()

    # ---- defects

    def give_up(self, error: BaseException) -> None:
        """End the epoch because of a defect in a part of the node, which then joins again. Its clients' connections are
        closed with 320, and other nodes lease its messages. Too many defects end the broker. Fenced is not a defect.
        """
        if isinstance(error, Fenced):
            return
        _log.error("node.defect", node=self.database.node, epoch=self.epoch, exc_info=error)
        now_s = self._clock()
        self._defects_s = [*(at_s for at_s in self._defects_s if now_s - at_s < DEFECTS_S), now_s]
        if len(self._defects_s) > DEFECTS_MAX:
            self.database.failed(error)
        else:
            self._lose(f"a defect, see the log: {type(error).__name__}")

    def _ended(self, error: BaseException) -> None:
        """End the broker because of a defect in a task that the node needs to be a member."""
        if not isinstance(error, Fenced):
            self.database.failed(error)

    # ---- the end of a lease, and of an epoch

    def _set_end(self) -> None:
        """Schedule the pause of the node for the end of its lease."""
        if self._expiry is not None:
            self._expiry.cancel()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(max(self._tenure.ends_s - self._clock(), 0) + 0.001, self._expire)

    def _expire(self) -> None:
        if self._tenure.expired(self._clock()):
            reason = self._reason or f"PostgreSQL did not answer within the lease of {self.lease_ms} ms"
            _log.warning("node.paused", node=self.database.node, epoch=self.epoch, reason=reason)
            if self._is_caught_up:
                self._events.paused(reason)
        elif self.state is TenureState.JOINED:
            self._set_end()

    def _fenced(self, epoch: int, reason: str) -> None:
        if epoch == self.epoch:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        if not self._tenure.fence(self.epoch):
            return
        self._stop_acting()
        self._reason = reason
        self.database.end_epoch()
        _log.error("node.lost", node=self.database.node, epoch=self.epoch, reason=reason)
        self._is_lost.set()

    def _stop_acting(self) -> None:
        self._is_caught_up = False
        if self._expiry is not None:
            self._expiry.cancel()
