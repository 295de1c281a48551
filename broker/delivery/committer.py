"""The committer: one fdatasync for all waiting records, then the confirms.

No timer delays a confirm: while one sync runs, the next batch is collected. Collection continues for a few turns while
each of them appends much, because writing and syncing a batch costs as much CPU time as dozens of small messages. A
sync confirms only records appended before it began. A failed sync ends the process, because the kernel may have dropped
the dirty pages, and a retry would falsely succeed.

A thread writes and syncs, so that a slow disk does not stop the loop. The exception is a lone publish or declare, which
the loop writes and syncs itself, because two thread switches would take as long. It is lone if one publisher waits for
one confirm and also caused the sync before, and if this turn and the turns since that sync had no other work. Besides,
its batch must be small, and each of the last FAST_SYNCS syncs must have taken less than FAST_S. After a slow sync the
thread takes over again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from broker.store.message_log import Batch, MessageLog

if TYPE_CHECKING:
    from broker.core.confirmable import Confirmable

FAST_S: Final = 0.0005
FAST_SYNCS: Final = 8
LONE_MAX_BYTES: Final = 64 << 10  # a larger batch takes longer to write
LAZY_MAX_BYTES: Final = 4 << 20  # records without a waiter are written at this size: more would pause publishers
GATHER_BYTES: Final = 4 << 10  # after a turn that appends this much, the next turn probably appends more
GATHER_TURNS: Final = 4  # a batch waits at most this many turns, each of which handles a bounded share of input
COMMIT_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
QUIET_TURNS: Final = 2  # a lone publisher causes one turn that commits, and one that writes the confirm

Written = Callable[[BaseException | None], None]
"""Called with the error of a write, or None."""


class CommitTally:
    """A histogram of the durations of commits, from the beginning of a write to the confirms.

    Shapes: ``counts[n]`` counts commits up to ``COMMIT_BOUNDS_S[n]``, above the bound before; the last item, the rest.
    Units: ``total_s`` is the sum of the durations, ``total_bytes`` is the number of bytes written.
    """

    __slots__ = ("counts", "total_bytes", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.total_s = 0.0
        self.total_bytes = 0

    def committed(self, duration_s: float, size_bytes: int) -> None:
        """Count a commit."""
        self.counts[bisect_left(COMMIT_BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s
        self.total_bytes += size_bytes

    def add(self, other: CommitTally) -> None:
        """Add the counts of another tally."""
        self.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s
        self.total_bytes += other.total_bytes


class BatchWriter:
    """Call `write` for each batch in a thread, and then the batch's `written` on the loop.

    Cost: one lock and one wake-up of the loop per batch. A pool of threads would add a work item and a future.
    """

    def __init__(self, write: Callable[[Batch], None], loop: asyncio.AbstractEventLoop) -> None:
        self._write = write
        self._loop = loop
        self._batches: SimpleQueue[tuple[Batch, Written] | None] = SimpleQueue()
        self._running: Thread | None = None  # started by the first batch

    def start(self, batch: Batch, written: Written) -> None:
        """Start to write a batch. Invariant: the previous batch is written."""
        if self._running is None:
            # A daemon thread, because a process that ends while its disk hangs must not wait for the disk.
            self._running = Thread(target=self._run, name="committer", daemon=True)
            self._running.start()
        self._batches.put((batch, written))

    def close(self) -> None:
        """End the thread after its current batch."""
        if self._running is not None:
            self._batches.put(None)
            self._running.join()
            self._running = None

    def write(self, batch: Batch, written: Written) -> None:
        """Write a batch in the calling thread, and report the outcome to the loop."""
        error: BaseException | None = None
        try:
            self._write(batch)
        except BaseException as failure:  # noqa: BLE001 - the committer ends the broker
            error = failure
        with suppress(RuntimeError):  # the loop is closed, so nothing waits
            self._loop.call_soon_threadsafe(written, error)

    def _run(self) -> None:
        while (item := self._batches.get()) is not None:
            self.write(*item)
            item = None  # release the records now, not with the next batch


class EngineCommitter(Protocol):
    """A committer as an engine sees it. See `Committer`."""

    @property
    def busy(self) -> bool: ...
    @property
    def tally(self) -> CommitTally: ...
    def wait(self, waiter: Confirmable, /) -> None: ...
    def sync_soon(self) -> None: ...
    def turn(self, number: int, alone: bool, /) -> int: ...
    async def drain(self) -> None: ...
    def check(self) -> None: ...
    def abort(self, failure: BaseException, /) -> None: ...
    def close(self) -> None: ...


class Committer:
    """Write and sync one log in a thread, one batch at a time, and confirm the publishes of each batch. Units:
    ``lazy_s`` is how long records without a waiter (acks) may stay unwritten.
    """

    def __init__(
        self,
        log: MessageLog,
        loop: asyncio.AbstractEventLoop,
        schedule: Callable[[], None],
        fail: Callable[[BaseException], None],
        lazy_s: float = 0.05,
    ) -> None:
        self._log = log
        self._writer = BatchWriter(log.write, loop)
        self._loop = loop
        self._schedule = schedule
        self._fail = fail
        self._lazy_s = lazy_s
        self._waiting: list[Confirmable] = []
        self._batch: Batch | None = None  # the batch being written, since `_began_s`
        self._began_s = 0.0
        self._confirms: list[tuple[Confirmable, int]] = []  # up to which number the batch confirms each publisher
        self._draining: list[asyncio.Future[None]] = []  # the drains that the batch completes
        self._lazy: asyncio.TimerHandle | None = None
        self._synced_waiters: list[asyncio.Future[None]] = []  # the drains that the next batch completes
        self._failure: BaseException | None = None
        self._fast_syncs = 0  # the number of fast syncs since the last slow one
        self._syncing_s = 0.0  # the log's total time of syncs, before the batch
        self._seen = log.position  # at the last turn in which a batch could start
        self._gathered_turns = 0  # turns for which the next batch has waited
        self._last_turn = 0  # the last turn that started a sync and had no other work
        self._last_lone: Confirmable | None = None  # the publisher of the last sync, if there was only one
        self.tally = CommitTally()
        self.urgent = False  # something that needs no confirm waits for the disk (a checkpoint, a drain)

    @property
    def busy(self) -> bool:
        """Whether anything waits for the disk."""
        return self._batch is not None or self.urgent or bool(self._waiting)

    def wait(self, waiter: Confirmable) -> None:
        """Confirm a publisher, a transaction or the vhost's answers as soon as their records so far are on disk."""
        self._waiting.append(waiter)
        self._schedule()

    def sync_soon(self) -> None:
        """Sync the records so far in the next turn, even if no publisher waits for them."""
        self.urgent = True
        self._schedule()

    def turn(self, number: int, alone: bool) -> int:
        """Confirm work that needs no disk, and start a sync if something waits for one and none is running. Return the
        number of bytes that wait or are being written (too large when a new segment begins). `number` counts turns; a
        turn is `alone` when it has no other work.
        """
        for_disk: list[Confirmable] = []
        for publisher in self._waiting:
            if publisher.logged > publisher.confirmed:
                for_disk.append(publisher)
            else:
                publisher.waiting = False  # hot: set directly
                publisher.confirm(publisher.published)
        self._waiting = for_disk
        if self._batch is not None or self._log.grouping:  # a batch ends before a transaction or after it
            return self._log.position - self._log.written
        if for_disk or self.urgent:
            appended_bytes = self._log.position - self._seen
            self._seen += appended_bytes
            if (
                self.urgent
                or appended_bytes < GATHER_BYTES
                or self._gathered_turns == GATHER_TURNS
                or self._one_waits()
            ):
                self._start(number, alone)
            else:  # the batch waits for the next turn, because this turn appended much
                self._gathered_turns += 1
                self._schedule()
        elif self._log.waiting and self._log.position - self._log.written > LAZY_MAX_BYTES:
            self.sync_soon()
        elif self._log.waiting and self._lazy is None:
            self._lazy = self._loop.call_later(self._lazy_s, self._start_lazily)
        return self._log.position - self._log.written if self._log.waiting else 0

    async def drain(self) -> None:
        """Wait until everything appended so far is written and synced.

        Raises: the error that ended the broker, or took the vhost offline; ValueError when the vhost was deleted.
        """
        self.check()
        if self._batch is not None or self._log.waiting or self._waiting:
            future: asyncio.Future[None] = self._loop.create_future()
            self._synced_waiters.append(future)
            self.sync_soon()
            await future

    def check(self) -> None:
        """Raise the error given to `abort`, if there is one."""
        if self._failure is not None:
            raise self._failure

    def abort(self, failure: BaseException) -> None:
        """Fail the drains that wait for the next batch: the broker or the vhost has ended, and no sync will follow."""
        self._failure = failure
        waiters, self._synced_waiters = self._synced_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(failure)

    def close(self) -> None:
        """End the thread; call it after `drain`. Remaining waiters, of a deleted vhost, get an error."""
        self.abort(self._failure or ValueError("the vhost was deleted"))
        if self._lazy is not None:
            self._lazy.cancel()
        self._writer.close()
        self._last_lone = None  # breaks a reference cycle

    def _start_lazily(self) -> None:
        self._lazy = None
        if self._batch is None:
            self.sync_soon()

    def _one_waits(self) -> bool:
        """Return whether a single publish waits."""
        return len(self._waiting) == 1 and self._waiting[0].published == self._waiting[0].confirmed + 1

    def _start(self, number: int, alone: bool) -> None:
        """Start to write and sync the records so far, in the thread or, for a lone publish, here."""
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None
        self.urgent = False
        self._gathered_turns = 0
        lone = alone and self._is_lone(number)
        batch = self._batch = self._log.take()
        self._confirms = [(publisher, publisher.published) for publisher in self._waiting]
        for publisher in self._waiting:
            publisher.waiting = False  # hot: set directly
        self._waiting = []
        self._draining, self._synced_waiters = self._synced_waiters, []
        if batch is None:
            self._written(None)
            return
        self._began_s = perf_counter()
        self._syncing_s = self._log.syncing_s
        if not lone or batch.size_bytes > LONE_MAX_BYTES:
            self._writer.start(batch, self._written)
            return
        error: BaseException | None = None
        try:
            self._log.write(batch)
        except BaseException as failure:  # noqa: BLE001 - `_written` ends the broker
            error = failure
        self._written(error)
        if error is not None:
            raise error  # the turn must not continue

    def _is_lone(self, number: int) -> bool:
        """Return whether the publisher of the last sync waits for one publish, turns were quiet, and syncs fast."""
        quiet = number <= self._last_turn + QUIET_TURNS
        self._last_turn = number
        waiting = self._waiting
        last, self._last_lone = self._last_lone, waiting[0] if len(waiting) == 1 else None
        if not quiet or last is None or last is not self._last_lone or self._fast_syncs < FAST_SYNCS:
            return False
        return self._one_waits()

    def _written(self, error: BaseException | None) -> None:
        """Confirm the publishes of a written batch, and schedule the next one; end the broker if the write failed."""
        batch, self._batch = self._batch, None
        try:
            if error is not None:
                raise error
            if batch is not None:
                self.tally.committed(perf_counter() - self._began_s, batch.size_bytes)
                self._fast_syncs = self._fast_syncs + 1 if self._log.syncing_s - self._syncing_s < FAST_S else 0
                self._log.complete(batch)
            for publisher, upto in self._confirms:
                publisher.confirm(upto)
            for waiter in self._draining:
                if not waiter.done():
                    waiter.set_result(None)
            self._confirms = []
            self._draining = []
            if self._waiting or self.urgent or self._log.waiting:
                self._schedule()
        except BaseException as failure:  # noqa: BLE001 - a lost store, or a defect: nothing is confirmed any more
            self._synced_waiters += self._draining
            self.abort(failure)
            self._fail(failure)
