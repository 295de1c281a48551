"""Leases: how many messages of each level this node asks for, and which it returns. It asks when messages may be free
and no more than half of those that it can use are ready here. It can use as many as its consumers can take now, plus
the number settled in the current and the previous 50 ms. So few messages are leased for a slow consumer, and a fast one
needs no lease per message. Messages that this node cannot use are returned within 50 ms, and all ready ones when the
last consumer is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from broker.cluster.chunk_reader import ChunkReader
from broker.cluster.database import Database
from broker.cluster.database_rows import LeasedRow
from broker.cluster.errors import StatementRefused, Unreachable
from broker.cluster.hint import FREE, LOOK, WANTED, Hint, HintTeller
from broker.cluster.leased_rows import Arrivals, reconciled
from broker.cluster.shared_level import SharedLevel, SharedLevels
from broker.cluster.shared_slot import Returned
from broker.tasks import Tasks

TICK_S: Final = 0.05
LOOK_S: Final = 1.0
LEASE_MESSAGES: Final = 4096  # in one statement, for all its levels: more would block the loop and its heartbeats
STATEMENT_ROWS: Final = 1024  # levels or slots in one statement, each of which may take an entry of the lock table
ABLE_MAX: Final = 1 << 20  # cap on the reported room of consumers; more makes no difference
COUNTED_ROWS: Final = 1000  # at most this many slots of a level are counted for the answer to basic.get
WANTED_TICKS: Final = 20  # after the hint WANTED, no messages of the level are leased in advance for this long


class Leases:
    """Lease and return messages for all shared levels of a node, one statement at a time. Cost: O(touched levels) per
    check, O(levels with messages or settlements) per 50 ms, O(levels with consumers) per second, O(levels) per LOOK.
    """

    def __init__(
        self,
        levels: SharedLevels,
        database: Database,
        reader: ChunkReader,
        loop: asyncio.AbstractEventLoop,
        *,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._levels = levels
        self._database = database
        self._reader = reader
        self._loop = loop
        self._tasks = Tasks(fail)
        self._teller = HintTeller(database.notify, self._tasks)
        self._wants: dict[int, int] = {}  # by level: the number of messages to ask for
        self._returns: list[Returned] = []
        self._returning: list[Returned] = []  # in the running statement
        self._asked: list[SharedLevel] = []  # the levels of the running lease
        self._arrivals = Arrivals(levels, reader)
        self._consuming: dict[SharedLevel, None] = {}
        self._recent: dict[SharedLevel, None] = {}
        self._fetches: dict[SharedLevel, list[Callable[..., None]]] = {}
        self._waiters: list[asyncio.Future[None]] = []  # waiters for the end of all returns
        self._singly = 0  # how many of the next statements have one level or slot, because PostgreSQL refused more
        self._works = False
        self._finds = False
        self._ticker: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None
        self._epoch = 0  # grows with each call of `forget_all`
        self._paused = False
        self._closed = False
        self.asks = 0

    # -- for the node --------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Check the touched levels, and start leases and returns."""
        for level in self._levels.take_touched():
            self._consider(level)
        self._start()

    def handle_hint(self, hint: Hint) -> None:
        """Handle a hint of another node, or the notice that hints may have been lost."""
        if hint.kind == LOOK:
            self._look_at_all()
            return
        for number in hint.levels:
            level = self._levels.find(number)
            if level is None:
                continue
            if hint.kind == FREE:
                self._note_free(level, hint.number)
            elif hint.kind == WANTED:
                level.demand.note_peer_wants(WANTED_TICKS)
                self._watch(level)

    def freed(self, number: int, levels: Sequence[int]) -> None:
        """Record that this node committed or returned free messages, and tell the other nodes."""
        for one in levels:
            level = self._levels.by_number.get(one)
            if level is not None:
                self._note_free(level, number)
        self._teller.free(number, levels)

    def take_back(self, returned: list[Returned]) -> None:
        """Return messages that were not settled after all, because a transaction was refused or a move skipped them."""
        self._returns += returned
        self._start()

    def fetch(self, level: SharedLevel, then: Callable[..., None]) -> None:
        """Lease a message unless one is ready, even without room; then call `then`, with an error if refused."""
        self._fetches.setdefault(level, []).append(then)
        if level.queue.rules.limited and not level.queue.consumers.present:
            self._surrender(level, level.manager.ready)  # requeued messages may exceed the limit
        level.demand.ignore_bound()
        self._levels.touch(level)

    async def returned(self) -> None:
        """Wait until PostgreSQL has freed all returned messages or refused them, or the node's epoch has ended."""
        self.turn()
        while self._returns or self._returning:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def pause(self) -> None:
        """Stop leases and returns, because the lease of this node has ended for now."""
        self._paused = True

    def resume(self) -> None:
        """Resume leases and returns, starting with a full check."""
        self._paused = False
        self._look_at_all()

    def forget_all(self) -> None:
        """Drop everything leased, because the epoch of this node has ended."""
        self._epoch += 1
        self._wants.clear()
        self._returns.clear()
        self._returning = []
        self._wake_waiters()
        self._arrivals.forget()
        self._teller.forget()
        self._recent.clear()
        self._reader.clear()
        for level in list(self._levels.by_number.values()):
            level.forget()

    def reconcile(self, rows: Sequence[LeasedRow], kept: Sequence[LeasedRow] = ()) -> None:
        """Compare the rows leased to this node in the database with its own state, while no call or lease runs."""
        self._reader.clear()
        returning = (*self._returns, *self._returning)
        self._returns += reconciled(self._levels, rows, (*self._arrivals.rows, *kept), returning)
        self._look_at_all()

    async def close(self) -> None:
        """Stop. Leased messages are returned when the node leaves."""
        self._closed = True
        for timer in (self._ticker, self._looker):
            if timer is not None:
                timer.cancel()
        await self._tasks.stop()
        self._returns.clear()
        self._returning = []
        self._wake_waiters()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _note_free(self, level: SharedLevel, number: int) -> None:
        """Record that a slot may have free messages of a level."""
        level.demand.note_free(number)
        if level.queue.consumers.present:
            self._levels.touch(level)

    def _consider(self, level: SharedLevel) -> None:
        """Decide whether to lease messages for a level or return some."""
        if level.deleted:
            self._forget(level)
            return
        queue = level.queue
        fetches = level in self._fetches
        if not queue.consumers.present and not fetches:
            self._consuming.pop(level, None)
            level.demand.has_no_room()
            if level.manager.ready:
                self._surrender(level, level.manager.ready)
                if level.manager.ready:
                    self._watch(level)  # the remaining messages are in the running call
            return
        if queue.consumers.present and level not in self._consuming:
            self._consuming[level] = None
            if self._looker is None and not self._closed:
                self._looker = self._loop.call_later(LOOK_S, self._look)
        ready = queue.ready
        if ready or level.demand.settled_now:
            self._watch(level)
        if fetches and (ready or not (level.demand.free or level.demand.asked)):
            self._fetched([level])
        if level.demand.asked or level.elsewhere:
            return
        reports = queue.rules.limited and (level.room(1) > 0) is not level.demand.has_room
        if not level.demand.free and not reports:
            return
        target = self._target(level)
        if fetches:
            target = max(target, 1)
        if target > ready and (2 * ready <= target or reports):
            self._wants[level.number] = target - ready
        elif reports:
            self._wants[level.number] = 0
        elif ready and not self._paused and queue.consumers.room(1):
            self._levels.touch(level)  # once the ready ones are delivered, more may be needed

    def _target(self, level: SharedLevel) -> int:
        """Return how many ready messages this node can use, even if other queues use up a shared prefetch."""
        demand = level.demand
        consumers = level.queue.consumers
        room = consumers.room(demand.step)
        if not room and not demand.peer_wants:
            room = consumers.share()
        return demand.target(room)

    def _surrender(self, level: SharedLevel, count: int) -> None:
        """Return the last messages of a level, unless a lease is running whose messages would overtake them."""
        if level.demand.asked:
            return
        ready = level.manager.ready
        returned = level.surrender(count)
        if level.manager.ready < ready:
            level.demand.note_backlog()
        if returned:
            self._returns += returned
            level.demand.note_free(min([one.slot.number for one in returned]))

    def _watch(self, level: SharedLevel) -> None:
        """Check a level every 50 ms until it has no ready messages, settles none, and no other node wants any."""
        self._recent[level] = None
        if self._ticker is None and not self._closed:
            self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """Return messages for which no consumer here has room, and record how fast consumers settle."""
        self._ticker = None
        recent, self._recent = self._recent, {}
        for level in recent:
            if level.deleted:
                continue
            if level not in self._fetches:
                surplus = level.queue.ready - self._target(level)
                if surplus > 0:
                    self._surrender(level, min(surplus, level.manager.ready))
            level.demand.rotate()
            if level.manager.ready or level.demand.settled_before or level.demand.peer_wants:
                self._watch(level)
        self._start()

    def _look(self) -> None:
        """Ask for messages of each level with consumers and no ready messages, because a hint may have been lost."""
        self._looker = None
        if self._consuming and not self._closed:
            self._looker = self._loop.call_later(LOOK_S, self._look)
            strict = False
            for level in self._consuming:
                strict = strict or level.queue.strict
                if not level.queue.ready and not level.demand.asked:
                    level.demand.ignore_bound()
                    self._levels.touch(level)
            if strict:
                self._find_levels()

    def _look_at_all(self) -> None:
        for level in self._levels.by_number.values():
            level.demand.note_free(0)
            self._levels.touch(level)
        self._find_levels()

    def _find_levels(self) -> None:
        """Create the levels of quorum queues that other nodes were the first to use."""
        if not (self._finds or self._paused or self._closed):
            self._finds = True
            self._tasks.start(self._ask_for_levels())

    async def _ask_for_levels(self) -> None:
        try:
            for number in await self._database.levels_in_use():
                self._levels.find(number)
        except Unreachable:
            pass  # the next `_look` finds them
        finally:
            self._finds = False

    def _forget(self, level: SharedLevel) -> None:
        self._consuming.pop(level, None)
        self._recent.pop(level, None)
        for then in self._fetches.pop(level, ()):
            then()

    def _fetched(self, levels: Sequence[SharedLevel]) -> None:
        """Complete the fetches from these levels, before the levels are checked again."""
        for level in levels:
            for then in self._fetches.pop(level, ()):
                then()
        for level in levels:
            self._levels.touch(level)  # messages that no fetch took are returned

    # -- statements ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not (self._works or self._paused or self._closed) and (self._wants or self._returns):
            self._works = True
            self._tasks.start(self._work())

    async def _work(self) -> None:
        """Return and lease messages until nothing is left to do; returns are completed before leases begin."""
        epoch = self._epoch
        try:
            while (self._returns or self._wants) and epoch == self._epoch and not self._paused:
                if self._returns:
                    await self._give_back()
                else:
                    await self._ask()
        except Unreachable:  # the node's rows are reconciled before anything continues
            await asyncio.sleep(TICK_S)
        finally:
            self._works = False
            if epoch == self._epoch:
                self._give_up_asking()
            self._levels.schedule()

    async def _give_back(self) -> None:
        epoch = self._epoch
        rows_max = self._rows_max()
        returned = self._returning = sorted(self._returns[:rows_max], key=attrgetter("slot.place"))
        del self._returns[:rows_max]
        try:
            await self._database.give_back(
                [one.slot.level for one in returned],
                [one.slot.number for one in returned],
                [one.bits for one in returned],
                [one.seen if one.seen.any() else None for one in returned],
                [{str(index): count for index, count in one.counts.items()} or None for one in returned],
            )
        except StatementRefused:  # a slot that is refused on its own stays leased until the next reconciliation
            if epoch == self._epoch and len(returned) > 1:
                self._returns = returned + self._returns
                self._singly = len(returned)
            return
        except Unreachable:
            if epoch == self._epoch:
                self._returns = returned + self._returns
            raise
        finally:
            self._returning = []
            self._wake_waiters()
        if epoch == self._epoch:
            levels = sorted({one.slot.level for one in returned})
            for number in levels:
                if level := self._levels.by_number.get(number):
                    level.demand.has_no_room()
            self.freed(min([one.slot.number for one in returned]), levels)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _ask(self) -> None:
        epoch = self._epoch
        numbers = sorted(islice(self._wants, self._rows_max()))
        most = max(1, LEASE_MESSAGES // len(numbers))
        self._asked = asked = []
        able: list[int] = []
        for number in numbers:
            wanted = self._wants.pop(number)
            level = self._levels.by_number.get(number)
            if level is not None and not level.deleted:
                able.append(level.room(ABLE_MAX) if level.queue.rules.limited else 0)
                level.demand.ask(min(wanted, most), has_room=able[-1] > 0)
                asked.append(level)
        self.asks += 1
        room = [level.demand.asked for level in asked]
        bounds = [level.demand.begin() for level in asked]
        try:
            rows = await self._database.lease([level.number for level in asked], room, bounds, able)
        except StatementRefused as error:
            if epoch == self._epoch:
                self._refuse(asked, error)
            return
        if epoch != self._epoch:
            return
        self._arrivals.begin(rows)
        left = await self._count_left(rows)
        chunks = await self._arrivals.read(lambda: epoch != self._epoch or self._closed)
        if epoch != self._epoch:
            return
        found: dict[int, LeasedRow] = {row.level: row for row in rows}  # the last row of each level
        counts = self._arrivals.adopt(chunks)
        self._asked = []
        fetched: list[SharedLevel] = []
        touched: list[SharedLevel] = []
        for level, wanted, most in zip(asked, room, able, strict=True):
            last = found.get(level.number)
            if last is not None and last.number is not None:
                level.demand.passed(last.number, last.began, last.finished)
                if last.more:
                    level.demand.note_free(last.number)  # if the lease ignored the bound, some may be left below
            count = counts.get(level.number, 0)
            level.demand.answered(
                count,
                more=last is not None and last.more,
                gathers=self._levels.gathers(level.number),
                has_room=most > count,
            )
            if level in self._fetches:
                level.demand.note_remaining(left.get(level.number, 0))
                fetched.append(level)
            if level.demand.free or level.number in counts:
                touched.append(level)
            elif wanted and not level.demand.notified:
                level.demand.note_notified()
                self._teller.wanted(level.number)
        self._fetched(fetched)
        for level in touched:
            self._levels.touch(level)

    async def _count_left(self, rows: Sequence[LeasedRow]) -> Mapping[int, int]:
        """Return how many messages are free in at most COUNTED_ROWS slots of each level that basic.get fetches from."""
        numbers = {level.number for level in self._fetches}
        found = [row.level for row in rows if row.more and row.level in numbers]
        try:
            return await self._database.free_messages(found, COUNTED_ROWS) if found else {}
        except Unreachable:
            return {}

    def _rows_max(self) -> int:
        """Return the maximum number of levels or slots in the next statement."""
        self._singly, singly = max(0, self._singly - 1), self._singly
        return 1 if singly else STATEMENT_ROWS

    def _refuse(self, asked: Sequence[SharedLevel], error: StatementRefused) -> None:
        """Ask for the levels of a refused lease one by one. A single level waits for `_look`, and its fetches fail."""
        if len(asked) > 1:
            self._singly = len(asked)
            self._give_up_asking()
            return
        self._asked = []
        for level in asked:
            level.demand.answered(0, more=False, gathers=True)
            for then in self._fetches.pop(level, ()):
                then(error)

    def _give_up_asking(self) -> None:
        """Record that the lease has failed, and let its levels ask again."""
        asked, self._asked = self._asked, []
        for level in asked:
            level.demand.answered(0, more=True, gathers=False)
            level.demand.ignore_bound()  # the failed lease may have ignored the bound
            self._levels.touch(level)
