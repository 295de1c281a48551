"""Leases: how many messages of which streams this node asks for, and which of them it returns.

A stream asks when messages may be free and its consumers here have room for more than the node has. Room is what they
can take now, and what they settled within the last 50 ms. So a slow consumer holds little, and a fast one does not ask
per message. Messages for which no consumer here has room go back within 50 ms, all of them at once when the last
consumer leaves.
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
from broker.cluster.errors import Unreachable
from broker.cluster.hint import FREE, LOOK, WANTED, Hint, HintTeller
from broker.cluster.leased_rows import Arrivals, reconciled
from broker.cluster.shared_level import SharedLevel, SharedLevels
from broker.cluster.shared_slot import Returned
from broker.tasks import Tasks

__all__ = ["Leases"]

TICK_S: Final = 0.05
LOOK_S: Final = 1.0
LEASE_MESSAGES: Final = 4096  # in one statement, shared by its streams: a long one would stop the node and its beats
STATEMENT_ROWS: Final = 1024  # streams or slots in one statement, each of which takes a lock of PostgreSQL's table
ABLE_MAX: Final = 1 << 20  # messages for which consumers have room in all; more makes no difference
COUNTED_ROWS: Final = 1000  # slots whose messages the answer to basic.get counts
WANTED_TICKS: Final = 20  # for so long a stream that another node wants keeps nothing ahead


class Leases:
    """Leases and returns for all shared streams of a node, one statement at a time.

    Cost: per look the streams that were touched, per 50 ms those with messages or settlements, per second those with
        consumers; never all streams.
    """

    def __init__(
        self,
        streams: SharedLevels,
        database: Database,
        reader: ChunkReader,
        loop: asyncio.AbstractEventLoop,
        *,
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail` ends the broker."""
        self._streams = streams
        self._database = database
        self._reader = reader
        self._loop = loop
        self._tasks = Tasks(fail)
        self._teller = HintTeller(database.notify, self._tasks)
        self._wants: dict[int, int] = {}  # by stream: how many messages to ask for
        self._returns: list[Returned] = []
        self._returning: list[Returned] = []  # those of the statement that runs
        self._asked: list[SharedLevel] = []  # for which the statement that runs asks
        self._arrivals = Arrivals(streams, reader)
        self._consuming: dict[SharedLevel, None] = {}
        self._recent: dict[SharedLevel, None] = {}
        self._fetches: dict[SharedLevel, list[Callable[[], None]]] = {}
        self._waiters: list[asyncio.Future[None]] = []  # who wait until nothing is to go back
        self._works = False
        self._finds = False
        self._ticker: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None
        self._epoch = 0  # grows when everything is forgotten
        self._paused = False
        self._closed = False
        self.asks = 0

    # -- what is heard ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Look at the streams that were touched, and start to ask and to return."""
        for stream in self._streams.take_touched():
            self._consider(stream)
        self._start()

    def heard(self, hint: Hint) -> None:
        """Take a hint of another node, or the news that hints may have been lost."""
        if hint.kind == LOOK:
            self._look_at_all()
            return
        for number in hint.streams:
            stream = self._streams.find(number)
            if stream is None:
                continue
            if hint.kind == FREE:
                self._note_free(stream, hint.number)
            elif hint.kind == WANTED:
                stream.demand.note_peer_wants(WANTED_TICKS)
                self._watch(stream)

    def freed(self, number: int, streams: Sequence[int]) -> None:
        """Note that a call of this node committed free messages."""
        for one in streams:
            stream = self._streams.by_number.get(one)
            if stream is not None:
                self._note_free(stream, number)
        self._teller.free(number, streams)

    def take_back(self, returned: list[Returned]) -> None:
        """Return messages that were not settled after all: a transaction was refused, or a move left them."""
        self._returns += returned
        self._start()

    def fetch(self, stream: SharedLevel, then: Callable[[], None]) -> None:
        """Lease one message, though no consumer has room for it, and call `then` when it is there or there is none."""
        self._fetches.setdefault(stream, []).append(then)
        if stream.queue.rules.limited and not stream.queue.consumers.present:
            self._surrender(stream, stream.manager.ready)  # what came back here may be too much
        stream.demand.look()
        self._streams.touch(stream)

    async def returned(self) -> None:
        """Return when everything that was to go back is free, or the node's epoch has ended."""
        self.turn()
        while self._returns or self._returning:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def pause(self) -> None:
        """Ask for nothing and return nothing: the lease of this node has ended for now."""
        self._paused = True

    def resume(self) -> None:
        """Continue, with a look at everything."""
        self._paused = False
        self._look_at_all()

    def forget_all(self) -> None:
        """Drop everything that is leased: the epoch of this node has ended."""
        self._epoch += 1
        self._wants.clear()
        self._returns.clear()
        self._returning = []
        self._wake_waiters()
        self._arrivals.forget()
        self._teller.forget()
        self._recent.clear()
        self._reader.clear()
        for stream in list(self._streams.by_number.values()):
            stream.forget()

    def reconcile(self, rows: Sequence[LeasedRow], kept: Sequence[LeasedRow] = ()) -> None:
        """Compare what the database says this node holds with what it knows; no statement is under way."""
        self._reader.clear()
        returning = (*self._returns, *self._returning)
        self._returns += reconciled(self._streams, rows, (*self._arrivals.rows, *kept), returning)
        self._look_at_all()

    async def close(self) -> None:
        """Stop. What is leased goes back when the node leaves."""
        self._closed = True
        for timer in (self._ticker, self._looker):
            if timer is not None:
                timer.cancel()
        await self._tasks.stop()
        self._returns.clear()
        self._returning = []
        self._wake_waiters()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _note_free(self, stream: SharedLevel, number: int) -> None:
        """Note that a slot has free messages of a stream."""
        stream.demand.note_free(number)
        if stream.queue.consumers.present:
            self._streams.touch(stream)

    def _consider(self, stream: SharedLevel) -> None:
        """Decide whether a stream asks for messages or returns some."""
        if stream.deleted:
            self._forget(stream)
            return
        queue = stream.queue
        fetches = stream in self._fetches
        if not queue.consumers.present and not fetches:
            self._consuming.pop(stream, None)
            stream.demand.has_no_room()
            if stream.manager.ready:
                self._surrender(stream, stream.manager.ready)
                if stream.manager.ready:
                    self._watch(stream)  # the call that has the rest is under way
            return
        if queue.consumers.present and stream not in self._consuming:
            self._consuming[stream] = None
            if self._looker is None and not self._closed:
                self._looker = self._loop.call_later(LOOK_S, self._look)
        ready = queue.ready
        if ready or stream.demand.settled_now:
            self._watch(stream)
        if fetches and (ready or not (stream.demand.free or stream.demand.asked)):
            self._fetched([stream])
        if stream.demand.asked or stream.elsewhere:
            return
        tells = queue.rules.limited and (stream.room(1) > 0) is not stream.demand.has_room
        if not stream.demand.free and not tells:
            return
        target = self._target(stream)
        if fetches:
            target = max(target, 1)
        if target > ready and (2 * ready <= target or tells):
            self._wants[stream.number] = target - ready
        elif tells:
            self._wants[stream.number] = 0
        elif ready and not self._paused and queue.consumers.room(1):
            self._streams.touch(stream)  # once these are delivered there may be use for more

    def _target(self, stream: SharedLevel) -> int:
        """Return how many ready messages of a stream this node has use for.

        Consumers that share a prefetch with those of other queues have use for some when their turn comes.
        """
        demand = stream.demand
        consumers = stream.queue.consumers
        room = consumers.room(demand.step)
        if not room and not demand.peer_wants:
            room = consumers.share()
        return demand.target(room)

    def _surrender(self, stream: SharedLevel, count: int) -> None:
        """Return the last messages of a stream, but nothing that arriving ones would overtake."""
        if stream.demand.asked:
            return
        ready = stream.manager.ready
        returned = stream.surrender(count)
        if stream.manager.ready < ready:
            stream.demand.note_backlog()
        if returned:
            self._returns += returned
            stream.demand.note_free(min([one.slot.number for one in returned]))

    def _watch(self, stream: SharedLevel) -> None:
        """Look at a stream every 50 ms until it has neither messages nor settlements."""
        self._recent[stream] = None
        if self._ticker is None and not self._closed:
            self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """Return messages for which no consumer here has room, and note how fast consumers settle."""
        self._ticker = None
        recent, self._recent = self._recent, {}
        for stream in recent:
            if stream.deleted:
                continue
            if stream not in self._fetches:
                surplus = stream.queue.ready - self._target(stream)
                if surplus > 0:
                    self._surrender(stream, min(surplus, stream.manager.ready))
            stream.demand.rotate()
            if stream.manager.ready or stream.demand.settled_before or stream.demand.peer_wants:
                self._watch(stream)
        self._start()

    def _look(self) -> None:
        """Ask for every stream whose consumers wait: a hint may have been lost."""
        self._looker = None
        if self._consuming and not self._closed:
            self._looker = self._loop.call_later(LOOK_S, self._look)
            strict = False
            for stream in self._consuming:
                strict = strict or stream.queue.strict
                if not stream.queue.ready and not stream.demand.asked:
                    stream.demand.look()
                    self._streams.touch(stream)
            if strict:
                self._find_levels()

    def _look_at_all(self) -> None:
        for stream in self._streams.by_number.values():
            stream.demand.note_free(0)
            self._streams.touch(stream)
        self._find_levels()

    def _find_levels(self) -> None:
        """Find the levels that other nodes were the first to use."""
        if not (self._finds or self._paused or self._closed):
            self._finds = True
            self._tasks.start(self._ask_for_levels())

    async def _ask_for_levels(self) -> None:
        try:
            for number in await self._database.levels_in_use():
                self._streams.find(number)
        except Unreachable:
            pass  # the next look finds them
        finally:
            self._finds = False

    def _forget(self, stream: SharedLevel) -> None:
        self._consuming.pop(stream, None)
        self._recent.pop(stream, None)
        for then in self._fetches.pop(stream, ()):
            then()

    def _fetched(self, streams: Sequence[SharedLevel]) -> None:
        """Call those who wait for a message of these streams, before anything of them is looked at again."""
        for stream in streams:
            for then in self._fetches.pop(stream, ()):
                then()
        for stream in streams:
            self._streams.touch(stream)  # what the fetch did not take goes back

    # -- statements ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not (self._works or self._paused or self._closed) and (self._wants or self._returns):
            self._works = True
            self._tasks.start(self._work())

    async def _work(self) -> None:
        """Return and ask until there is nothing to do; what is returned is gone before anything is asked for."""
        epoch = self._epoch
        try:
            while (self._returns or self._wants) and epoch == self._epoch and not self._paused:
                if self._returns:
                    await self._give_back()
                else:
                    await self._ask()
        except Unreachable:  # the rows that this node holds are reconciled before anything goes on
            await asyncio.sleep(TICK_S)
        finally:
            self._works = False
            if epoch == self._epoch:
                self._give_up_asking()
            self._streams.schedule()

    async def _give_back(self) -> None:
        epoch = self._epoch
        returned = self._returning = sorted(self._returns[:STATEMENT_ROWS], key=attrgetter("slot.place"))
        del self._returns[:STATEMENT_ROWS]
        try:
            await self._database.give_back(
                [one.slot.stream for one in returned],
                [one.slot.number for one in returned],
                [one.bits for one in returned],
                [one.seen if one.seen.any() else None for one in returned],
                [{str(index): count for index, count in one.counts.items()} or None for one in returned],
            )
        except Unreachable:
            if epoch == self._epoch:
                self._returns = returned + self._returns
            raise
        finally:
            self._returning = []
            self._wake_waiters()
        if epoch == self._epoch:
            streams = sorted({one.slot.stream for one in returned})
            for number in streams:
                if stream := self._streams.by_number.get(number):
                    stream.demand.has_no_room()
            self.freed(min([one.slot.number for one in returned]), streams)

    def _wake_waiters(self) -> None:
        """Wake those who wait for returns."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _ask(self) -> None:
        epoch = self._epoch
        numbers = sorted(islice(self._wants, STATEMENT_ROWS))
        most = max(1, LEASE_MESSAGES // len(numbers))
        self._asked = asked = []
        able: list[int] = []
        for number in numbers:
            wanted = self._wants.pop(number)
            stream = self._streams.by_number.get(number)
            if stream is not None and not stream.deleted:
                able.append(stream.room(ABLE_MAX) if stream.queue.rules.limited else 0)
                stream.demand.ask(min(wanted, most), has_room=able[-1] > 0)
                asked.append(stream)
        self.asks += 1
        room = [stream.demand.asked for stream in asked]
        bounds = [stream.demand.begin() for stream in asked]
        rows = await self._database.lease([stream.number for stream in asked], room, bounds, able)
        if epoch != self._epoch:
            return
        self._arrivals.begin(rows)
        left = await self._count_left(rows)
        chunks = await self._arrivals.read(lambda: epoch != self._epoch or self._closed)
        if epoch != self._epoch:
            return
        found: dict[int, LeasedRow] = {row.stream: row for row in rows}  # the last row of each stream
        counts = self._arrivals.adopt(chunks)
        self._asked = []
        fetched: list[SharedLevel] = []
        touched: list[SharedLevel] = []
        for stream, wanted, most in zip(asked, room, able, strict=True):
            last = found.get(stream.number)
            if last is not None and last.number is not None:
                stream.demand.passed(last.number, last.began, last.finished)
                if last.more:
                    stream.demand.note_free(last.number)  # a look at everything may have left some below the bound
            count = counts.get(stream.number, 0)
            stream.demand.answered(
                count,
                more=last is not None and last.more,
                gathers=self._streams.gathers(stream.number),
                has_room=most > count,
            )
            if stream in self._fetches:
                stream.demand.note_remaining(left.get(stream.number, 0))
                fetched.append(stream)
            if stream.demand.free or stream.number in counts:
                touched.append(stream)
            elif wanted and not stream.demand.notified:
                stream.demand.note_notified()
                self._teller.wanted(stream.number)
        self._fetched(fetched)
        for stream in touched:
            self._streams.touch(stream)

    async def _count_left(self, rows: Sequence[LeasedRow]) -> Mapping[int, int]:
        """Return how many more free messages there are in streams of which one is being fetched."""
        numbers = {stream.number for stream in self._fetches}
        found = [row.stream for row in rows if row.more and row.stream in numbers]
        try:
            return await self._database.free_messages(found, COUNTED_ROWS) if found else {}
        except Unreachable:
            return {}

    def _give_up_asking(self) -> None:
        """Note that nothing is asked for; streams that were ask again."""
        asked, self._asked = self._asked, []
        for stream in asked:
            stream.demand.answered(0, more=True, gathers=False)
            stream.demand.look()  # the lease may have been one
            self._streams.touch(stream)
