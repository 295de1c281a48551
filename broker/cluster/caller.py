"""The caller: commits one batch after the other, and confirms what a committed batch has.

While a call runs the next batch gathers. A lone message leaves at once; under load a batch waits until it has 64 KiB,
or for 2 ms. Settlements alone wait for up to 50 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from broker.amqp.errors import BrokerError
from broker.cluster.errors import Fenced
from broker.cluster.shared_stream import SharedStreams
from broker.core.queue.rules import REJECT_PUBLISH_DLX
from broker.core.session.channel_confirms import ChannelConfirms
from broker.core.session.tx import TxSession
from broker.core.statistics.commit_tally import CommitTally

if TYPE_CHECKING:
    from broker.cluster.batch import GatheringBatch
    from broker.cluster.database_rows import CommittedCall, SharedCall
    from broker.core.confirmable import Confirmable

__all__ = ["CallDatabase", "Caller", "SharedCommitter"]

WholeCall: TypeAlias = "tuple[GatheringBatch, SharedCall, asyncio.Future[Sequence[int] | None]]"

FILL_BYTES: Final = 64 << 10
FILL_S: Final = 0.002
LOAD_MESSAGES: Final = 16  # after a call with as many messages the next batch waits until it is filled
LAZY_S: Final = 0.05


class CallDatabase(Protocol):
    """The database as the caller sees it."""

    async def commit(self, call: SharedCall, *, synchronous: bool, whole: bool = False) -> CommittedCall:
        """Commit a call once, however often its connection breaks; with `whole`, all of it or nothing.

        Raises: Fenced when this node's epoch has ended; any other error is a defect.
        """


class Caller:
    """Commits the batches of all vhosts of a node, one at a time.

    Units: ``calls`` counts the calls that were answered.
    Invariant: a publisher or a transaction is confirmed after every batch that has work of it is committed.
    """

    def __init__(
        self,
        streams: SharedStreams,
        database: CallDatabase,
        loop: asyncio.AbstractEventLoop,
        *,
        freed: Callable[[int, list[int], Sequence[bytes]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`freed` hears of free messages: slot number, streams and chunk. `failed` hears what ended a call."""
        self._streams = streams
        self._database = database
        self._loop = loop
        self._freed = freed
        self._failed = failed
        self._waiting: list[Confirmable] = []
        self._drains: list[asyncio.Future[None]] = []
        self._whole: deque[WholeCall] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._fill_until = 0.0
        self._urgent = False
        self._closed = False
        self.calls = 0
        self.tally = CommitTally()

    @property
    def busy(self) -> bool:
        """Whether a call runs, or something waits for one that will follow at once."""
        waits = bool(self._waiting) or bool(self._whole)
        return self._task is not None or self._urgent or waits or self._streams.batch.publishes

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait to be committed."""
        running = self._streams.running
        return self._streams.batch.size_bytes + (0 if running is None else running.size_bytes)

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm a publisher or a transaction as soon as everything that it gathered is committed."""
        self._waiting.append(confirmable)
        self._streams.stir()

    def commit_soon(self) -> None:
        """Commit what was gathered as soon as no call runs."""
        self._urgent = True
        self._streams.stir()

    async def drain(self) -> None:
        """Return when everything that was gathered so far is committed. Raises: Fenced."""
        batch = self._streams.batch
        if self._task is None and not (self._whole or batch.publishes or batch.settles):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._drains.append(future)
        self.commit_soon()
        await future

    async def commit_whole(self, batch: GatheringBatch) -> Sequence[int] | None:
        """Commit a batch of its own, with nothing else; return None, or how much each share could bring to full queues.

        Nothing of it is committed then. Raises: Fenced.
        """
        call = batch.close()
        if call is None:
            return None
        future: asyncio.Future[Sequence[int] | None] = self._loop.create_future()
        self._whole.append((batch, call, future))
        self._streams.stir()
        return await future

    def look(self) -> None:
        """Start a call when one is due, and confirm those that wait for none."""
        if self._task is not None or self._closed:
            return
        if self._whole:
            whole = self._whole.popleft()
            self._streams.begin(whole[0])
            self._task = self._loop.create_task(self._run_whole(*whole))
            return
        batch = self._streams.batch
        if batch.publishes or (batch.settles and (self._urgent or self._waiting)):
            wait_s = 0.0 if self._urgent or batch.size_bytes >= FILL_BYTES else self._fill_until - self._loop.time()
            if wait_s <= 0:
                self._leave()
            else:
                self._start_timer(wait_s)
        elif batch.settles:
            self._start_timer(LAZY_S)
        else:
            self._urgent = False
            self._confirm([(waiting, waiting.published) for waiting in self._take_waiting()], self._take_drains())

    def forget(self) -> None:
        """Drop the gathering batch and its waiters: the epoch of this node has ended."""
        self._streams.drop_batch()
        self._streams.unsaved.clear()
        self._take_waiting()
        self._urgent = False
        self._disappoint(self._take_futures(), Fenced("the epoch of this node has ended"))

    async def close(self) -> None:
        """Cancel the call that runs; its result is not known."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._disappoint(self._take_futures(), Fenced("this node is closing"))

    # -- one call -----------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent = False
        batch = self._streams.next_batch()
        for confirmable in self._take_waiting():
            batch.wait(confirmable, confirmable.published)
            if not isinstance(confirmable, ChannelConfirms):
                batch.synchronize()  # a transaction or a purge
        drains = self._take_drains()
        call = batch.close()
        if call is None:  # everything was settled since
            self._streams.call_ended()
            self._confirm(batch.confirms, drains)
            self._streams.stir()
            return
        self._task = self._loop.create_task(self._run(batch, call, drains))

    async def _run(self, batch: GatheringBatch, call: SharedCall, drains: list[asyncio.Future[None]]) -> None:
        began_s, size_bytes = self._loop.time(), batch.size_bytes
        try:
            committed = await self._database.commit(call, synchronous=batch.synchronous)
        except Exception as error:  # noqa: BLE001 - the node has lost its epoch, or the call has a defect
            self._end()
            self._disappoint(drains, error)
            self._failed(error)
            return
        self.calls += 1
        self.tally.committed(self._loop.time() - began_s, size_bytes)
        batch.committed(committed.number)
        if not batch.synchronous:
            self._streams.unsaved.add(batch.settlements(), self._loop.time())
        elif not committed.repeated:  # the database may have crashed between two attempts
            self._streams.unsaved.clear()
        if batch.messages >= LOAD_MESSAGES:
            self._fill_until = self._loop.time() + FILL_S
        if batch.limited:
            self._refuse(batch, committed.taken)
        freed = [share.slot.stream for share in batch.sent if share.free.any()]
        if freed:
            self._freed(committed.number, freed, call.parts)
        self._confirm(batch.confirms, drains)
        self._end()
        self.look()

    async def _run_whole(
        self, batch: GatheringBatch, call: SharedCall, future: asyncio.Future[Sequence[int] | None]
    ) -> None:
        try:
            committed = await self._database.commit(call, synchronous=True, whole=True)
        except asyncio.CancelledError:
            self._disappoint([future], Fenced("this node is closing"))
            raise
        except Exception as error:  # noqa: BLE001 - the node has lost its epoch, or the call has a defect
            self._end()
            self._disappoint([future], error)
            self._failed(error)
            return
        self.calls += 1
        if committed.number:
            batch.committed(committed.number)
            freed = [share.slot.stream for share in batch.sent]
            if freed:
                self._freed(committed.number, freed, call.parts)
        if not future.done():  # who waited for it may have been cancelled
            future.set_result(None if committed.number else committed.taken)
        self._end()
        self.look()

    def _refuse(self, batch: GatheringBatch, taken: Sequence[int]) -> None:
        """Tell publishers what a full queue did not take, and dead-letter it if the queue says so."""
        for share, index in batch.refused(taken):
            origin = share.origins[index]
            if origin is not None and isinstance(origin[0], (ChannelConfirms, TxSession)):
                origin[0].refuse(origin[1])
            stream = self._streams.by_number.get(share.slot.stream)
            if stream is not None and stream.queue.rules.overflow == REJECT_PUBLISH_DLX:
                stream.dead_letter(share.messages[index], "maxlen")

    def _end(self) -> None:
        self._task = None
        self._streams.call_ended()

    @staticmethod
    def _confirm(confirms: list[tuple[Confirmable, int]], drains: list[asyncio.Future[None]]) -> None:
        for confirmable, upto in confirms:
            confirmable.confirm(upto)
        for future in drains:
            if not future.done():
                future.set_result(None)

    @staticmethod
    def _disappoint(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def _take_waiting(self) -> list[Confirmable]:
        waiting, self._waiting = self._waiting, []
        for confirmable in waiting:
            confirmable.waiting = False  # hot: written here
        return waiting

    def _take_futures(self) -> list[asyncio.Future[Any]]:
        """Return all that wait for a call, which none will be."""
        whole, self._whole = self._whole, deque()
        return [*self._take_drains(), *(future for _, _, future in whole)]

    def _take_drains(self) -> list[asyncio.Future[None]]:
        drains, self._drains = self._drains, []
        return drains

    def _start_timer(self, wait_s: float) -> None:
        """Look again after a while, or sooner if a look is due sooner."""
        due = self._loop.time() + wait_s
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._ring)
        self._timer_due = due  # uvloop's handle of a very short timer does not know it

    def _ring(self) -> None:
        self._timer = None
        self._urgent = True
        self.look()


class SharedCommitter:
    """Confirms the publishes and transactions of one vhost, by the calls of its node."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether anything waits for a commit."""
        return self._caller.busy

    @property
    def tally(self) -> CommitTally:
        """The commits of the node, of all its vhosts together."""
        return self._caller.tally

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm a publisher or a transaction as soon as everything that it gathered is committed."""
        self._caller.wait(confirmable)

    def sync_soon(self) -> None:
        """Commit what was gathered so far as soon as no call runs."""
        self._caller.commit_soon()

    def turn(self, _number: int = 0) -> bool:
        """Return whether anything waits for a commit. Calls start by themselves."""
        return self._caller.busy

    async def drain(self) -> None:
        """Return when everything that was gathered so far is committed.

        Raises: the error that ended the broker; BrokerError when the node was lost to the cluster.
        """
        self.check()
        try:
            await self._caller.drain()
        except Fenced as error:
            raise BrokerError(f"this node was lost to the cluster: {error}") from error

    def check(self) -> None:
        """Raise the error that ended the broker, if it has ended."""
        if self._failure is not None:
            raise self._failure

    def abort(self, failure: BaseException) -> None:
        """Note the error that ended the broker."""
        self._failure = failure

    def close(self) -> None:
        """Confirm nothing more: the vhost is deleted."""
        self.abort(self._failure or ValueError("the vhost was deleted"))
