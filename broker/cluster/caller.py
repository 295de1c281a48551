"""The caller commits one batch after another, and confirms their publishes and transactions.

A publish is confirmed only by the answer to its call. The answer also says which messages full queues refused, because
no node decides that by itself. While a call runs, the next batch is collected. A lone message is sent at once; under
load a batch waits until it has 64 KiB, or for 2 ms. Settlements alone wait for up to 50 ms.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

from broker.amqp.errors import NodeLost
from broker.cluster.batch import GatheringBatch, LeftOut
from broker.cluster.chunk import Chunk, ChunkLoader
from broker.cluster.database import ENDED, Database
from broker.cluster.database_rows import CommittedCall, RefusedShare, SharedCall
from broker.cluster.errors import CommitRefused, Fenced, StatementRefused
from broker.cluster.shared_level import SharedLevels
from broker.cluster.shared_slot import Returned
from broker.core.confirmable import Confirmable
from broker.core.session.channel_confirms import ChannelConfirms
from broker.delivery.committer import CommitTally
from broker.tasks import Tasks

FILL_BYTES: Final = 64 << 10
FILL_S: Final = 0.002
LOAD_MESSAGES: Final = 16  # after a call with this many messages, the next batch waits for FILL_BYTES or FILL_S
LAZY_S: Final = 0.05


class Caller:
    """Commit the batches of all vhosts of a node, one at a time.

    Units: ``calls`` counts the batches whose calls were answered.
    Invariant: a publisher or a transaction is confirmed only once all batches with its work are committed.
    """

    def __init__(
        self,
        levels: SharedLevels,
        database: Database,
        loop: asyncio.AbstractEventLoop,
        *,
        freed: Callable[[int, list[int], Sequence[bytes]], None],
        returned: Callable[[list[Returned]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`freed` is called for messages that became free, with the slot number, levels and chunk; `returned` with the
        messages that a refused transaction or move had settled; `fail` with the error that ended a call: a defect, or
        the end of the epoch.
        """
        self._levels = levels
        self._database = database
        self._loop = loop
        self._freed = freed
        self._returned = returned
        self._unused: Callable[[set[str]], None] = lambda _: None
        self._loader = ChunkLoader()
        self._waiting: list[Confirmable] = []
        self._drains: list[asyncio.Future[None]] = []
        self._tasks = Tasks(fail, levels.schedule)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._fill_until = 0.0
        self._urgent = False
        self._closed = False
        self.calls = 0
        self.tally = CommitTally()

    def on_unused(self, unused: Callable[[set[str]], None]) -> None:
        """Set the function that is called with producers some of whose numbers stay unused after a refusal."""
        self._unused = unused

    @property
    def busy(self) -> bool:
        """Whether a call is running or due."""
        return self._tasks.busy or self._urgent or bool(self._waiting) or self._levels.batch.publishes

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be committed."""
        running = self._levels.running
        return self._levels.batch.size_bytes + (0 if running is None else running.size_bytes)

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm a publisher or a transaction as soon as all its work so far is committed."""
        self._waiting.append(confirmable)
        self._levels.schedule()

    def commit_soon(self) -> None:
        """Commit the collected batch as soon as no call is running."""
        self._urgent = True
        self._levels.schedule()

    async def drain(self) -> None:
        """Wait until everything collected so far is committed. Raises: Fenced."""
        if not self._tasks.busy and not (self._levels.batch.publishes or self._levels.batch.settles):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._drains.append(future)
        self.commit_soon()
        await future

    def start_if_due(self) -> None:
        """Start a call if one is due, or schedule it. If there is nothing to commit, confirm publishers at once."""
        if self._tasks.busy or self._closed:
            return
        batch = self._levels.batch
        if batch.publishes or (batch.settles and (self._urgent or self._waiting)):
            wait_s = 0.0 if self._urgent or batch.size_bytes >= FILL_BYTES else self._fill_until - self._loop.time()
            if wait_s <= 0:
                self._start_call()
            else:
                self._start_timer(wait_s)
        elif batch.settles:
            self._start_timer(LAZY_S)
        else:
            self._urgent = False
            self._confirm([(waiting, waiting.published) for waiting in self._take_waiting()], self._take_drains())

    def forget(self) -> None:
        """Drop the collected batch and its waiters, because the epoch of this node has ended."""
        self._levels.drop_batch()
        self._levels.unsaved.clear()
        self._take_waiting()
        self._urgent = False
        self._fail_waiters(self._take_drains(), ENDED)

    async def close(self) -> None:
        """Stop, without waiting for the result of the running call."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()
        self._fail_waiters(self._take_drains(), "this node is closing")

    # -- one call -----------------------------------------------------------------------------------------------------

    def _start_call(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent = False
        batch = self._levels.next_batch()
        for confirmable in self._take_waiting():
            batch.wait(confirmable, confirmable.published)
            if not isinstance(confirmable, ChannelConfirms):
                batch.synchronize()  # a transaction, the vhost's answers, or deliveries at QoS 2
        drains = self._take_drains()
        call = batch.close()
        if call is None:  # everything has been settled since
            self._levels.call_ended()
            self._confirm(batch.confirms, drains)
            self._levels.schedule()
            return
        self._tasks.start(self._run(batch, call, drains))

    async def _run(self, batch: GatheringBatch, call: SharedCall, drains: list[asyncio.Future[None]]) -> None:
        try:
            await self._commit(batch, call)
            self._confirm(batch.confirms, drains)
        except BaseException as error:  # the epoch has ended, the node closes, or a defect, which ends the epoch too
            self._fail_waiters(drains, str(error) or type(error).__name__)
            raise
        finally:
            self._levels.call_ended()

    async def _commit(self, batch: GatheringBatch, call: SharedCall) -> None:
        """Commit a batch, omitting atomic work that full queues refuse and work that can never be accepted."""
        began_s, size_bytes = self._loop.time(), batch.size_bytes
        left: SharedCall | None = call
        settled: list[Returned] = []
        while left is not None:
            call = left
            try:
                committed = await self._database.commit(call, synchronous=batch.synchronous)
            except CommitRefused as refusal:
                left_out = self._leave_out(batch, call, RefusedShare.all_from(json.loads(refusal.rows)))
            except StatementRefused:
                left_out = batch.leave_all_out()
                for share in batch.sent:
                    if (level := self._levels.by_number.get(share.slot.level)) is not None:
                        level.refuse(share.slot)
            else:
                self._committed(batch, call, committed)
                break
            settled += _returned(left_out)
            self._nack(left_out)
            left = batch.close()
        self.calls += 1
        self.tally.committed(self._loop.time() - began_s, size_bytes)
        if batch.messages >= LOAD_MESSAGES:
            self._fill_until = self._loop.time() + FILL_S
        if settled:
            self._returned([one for one in settled if one.slot.number])

    def _committed(self, batch: GatheringBatch, call: SharedCall, committed: CommittedCall) -> None:
        """Handle the answer to a call."""
        batch.committed(committed.number)
        if not batch.synchronous:
            self._levels.unsaved.add(batch.settlements(), self._loop.time())
        elif not committed.repeated:  # the database may have crashed between two attempts
            self._levels.unsaved.clear()
        if committed.refused:
            self._nack(self._leave_out(batch, call, committed.refused))
        freed = [share.slot.level for share in batch.sent if share.sent_free.any()]
        if freed:
            self._freed(committed.number, freed, call.parts)

    def _leave_out(self, batch: GatheringBatch, call: SharedCall, rows: Sequence[RefusedShare]) -> LeftOut:
        """Omit messages that full queues refused, and dead-letter those for which PostgreSQL requires it."""
        left_out = batch.leave_out([(batch.sent[row.place], row.bits) for row in rows])
        for row in rows:
            share = batch.sent[row.place]
            level = self._levels.by_number.get(share.slot.level)
            if row.dead_letters and level is not None:
                indexes = [index for index in row.bits.search(1) if share.records[index] not in left_out.records]
                chunk = Chunk(b"".join(call.parts))
                for message in self._loader.load(chunk, share.slot.level, indexes, share.slot.count):
                    level.dead_letter_unleased(message, "maxlen")
        return left_out

    def _nack(self, left_out: LeftOut) -> None:
        """Nack publishes that were refused, and report producers whose numbers were not used."""
        for confirmable, number in left_out.origins:
            confirmable.refuse(number)
        if left_out.producers:
            self._unused(left_out.producers)

    @staticmethod
    def _confirm(confirms: list[tuple[Confirmable, int]], drains: list[asyncio.Future[None]]) -> None:
        for confirmable, upto in confirms:
            confirmable.confirm(upto)
        for future in drains:
            if not future.done():
                future.set_result(None)

    @staticmethod
    def _fail_waiters(drains: list[asyncio.Future[None]], reason: str) -> None:
        for future in drains:
            if not future.done():
                future.set_exception(Fenced(reason))

    def _take_waiting(self) -> list[Confirmable]:
        waiting, self._waiting = self._waiting, []
        for confirmable in waiting:
            confirmable.waiting = False  # hot: set directly
        return waiting

    def _take_drains(self) -> list[asyncio.Future[None]]:
        drains, self._drains = self._drains, []
        return drains

    def _start_timer(self, wait_s: float) -> None:
        """Schedule the next check after a delay, unless one is due earlier."""
        due = self._loop.time() + wait_s
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._ring)
        self._timer_due = due  # for a very short timer, uvloop returns a handle without `when`

    def _ring(self) -> None:
        self._timer = None
        self._urgent = True
        self.start_if_due()


def _returned(left_out: LeftOut) -> list[Returned]:
    """Return the messages that a refused transaction had settled, marked as delivered unless a move leased them."""
    found: list[Returned] = []
    for slot, bits in left_out.settled:
        one = Returned(slot)
        one.add(bits, seen=slot.delivered)
        found.append(one)
    return found


class SharedCommitter:
    """Confirm the publishes and transactions of one vhost through its node's calls."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._failure: BaseException | None = None
        self.wait, self.sync_soon = caller.wait, caller.commit_soon

    @property
    def busy(self) -> bool:
        """Whether anything waits for a commit."""
        return self._caller.busy

    @property
    def tally(self) -> CommitTally:
        """The durations of the node's calls, which all its vhosts share."""
        return self._caller.tally

    def turn(self, _number: int, _alone: bool) -> int:
        """Return the number of bytes that wait for a commit. Calls start by themselves."""
        return self._caller.pending_bytes

    async def drain(self) -> None:
        """Wait until all collected work is committed. Raises: the error given to `abort`; NodeLost."""
        self.check()
        try:
            await self._caller.drain()
        except Fenced as error:
            raise NodeLost(f"this node was lost to the cluster: {error}") from error

    def check(self) -> None:
        """Raise the error that ended the broker or the vhost, if it has ended."""
        if self._failure is not None:
            raise self._failure

    def abort(self, failure: BaseException) -> None:
        """Record the error that ended the broker or the vhost."""
        self._failure = failure

    def close(self) -> None:
        """Let later calls of `drain` fail, because the vhost's engine has ended."""
        self.abort(self._failure or ValueError("the vhost was deleted"))
