"""The engine of a vhost: its store, and the parts that write, deliver and page its messages."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from broker.core.deadlines import TURN_SHARE, Deadlines
from broker.core.durable_topology import restore
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.changes import deleted_numbers
from broker.delivery.awaited_queues import AwaitedQueues
from broker.delivery.checkpointer import Checkpointer
from broker.delivery.compactor import Compactor
from broker.delivery.engine_parts import LocalParts, limits_of, new_vhost
from broker.delivery.message_loader import MessageLoader
from broker.delivery.pager import Pager
from broker.delivery.queue_messages import LocalMessages
from broker.delivery.reader import SlotReader
from broker.delivery.turn import Schedule, Turn, TurnEngine
from broker.delivery.worker import Workers
from broker.event_log import get_logger
from broker.settings import Settings
from broker.store.checkpoint import QueueState
from broker.store.damage import CorruptStore, StoreFailed
from broker.store.record import QUEUE_NUMBERS
from broker.store.recovery import Recovered
from broker.store.segment import OFFSET_BITS
from broker.store.store import VhostStore
from broker.tasks import Tasks

_log = get_logger()

NODE: Final = "local"
ALARM_MAX_MS: Final = 3_600_000


class Engine(TurnEngine):
    """Run one vhost: its workers, committer, pager and checkpointer, all in the loop's turns.

    Invariant: only threads wait for the disk, never the loop; the committer has one exception.
    """

    def __init__(
        self,
        name: str,
        store: VhostStore,
        settings: Settings,
        turn: Turn,
        loop: asyncio.AbstractEventLoop,
        *,
        generate: Callable[[], str],
        fail: Callable[[BaseException], None],
        parts: LocalParts,
    ) -> None:
        super().__init__(Schedule(turn))
        self.store = store
        self._log = store.log
        self._parts = parts
        self._turn = turn
        self._loop = loop
        self.fail = fail
        self._quarantines = settings.store.quarantines
        self._settled: list[Level] = []
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._checkpoint = Tasks(self.fail)
        self._closed = False
        self._stops = False
        self.retired = False  # the vhost is deleted or offline, so no new reads of its store may begin
        self._alarm: asyncio.TimerHandle | None = None
        self.deadlines = Deadlines(turn, self._arm)
        self.recovered_clean = False
        self._checkpoint_at = loop.time()
        self._checkpoint_interval_s = settings.store.checkpoint_interval_ms / 1000
        self.pager = Pager(store, settings.memory.resident_max_bytes, settings.slots.window_ms, turn)
        self.reader = SlotReader(store, loop, self.pager.opened, fail, turn.schedule)
        awaited = AwaitedQueues(self.deadlines, turn, self.schedule.deliver)
        self.workers = Workers(NODE, settings.slots.workers, self.reader, self.schedule.deliver, awaited)
        store.log.time_syncs(time.perf_counter)
        self.committer = parts.committer(store.log, loop, self.schedule.commit, fail)
        ports = QueuePorts(
            store=store,
            assign=self.workers.assign,
            retire=self.workers.release,
            opened=self.pager.opened,
            read=self.reader.read,
            moments=self.reader.moments,
            fetch=self.reader.fetch,
            measure=self.reader.measure,
            deadlines=self.deadlines,
            keep_poisoned=settings.amqp.keep_poisoned,
            window_messages=settings.slots.window_messages,
            window_bytes=settings.slots.window_bytes,
            settled=self._settled,
            credit=self.workers.credit,
            kind_of=parts.kind_of,
            level_of=parts.level_of,
        )
        self.vhost = new_vhost(
            name,
            settings,
            ports,
            self.committer,
            share=self.workers.share,
            journal_of=parts.journal,
            record=lambda change: store.recorder.record_topology(turn.now_ms, change),
            store_of=partial(parts.store, store.recorder),
            generate=generate,
            delay=parts.delay,
            producers=parts.producers,
            replies=parts.replies,
        )
        self.vhost.firehose.attach(f"slotmq@{socket.gethostname()}", self.workers.trace)
        self.checkpointer = Checkpointer(self.vhost, store, self.committer, self.pager, self._disk, turn.shorten)
        self.compactor = Compactor(self.vhost, store, self.committer, self._disk, settings.store.compact_below_ratio)

    def apply_settings(self, settings: Settings) -> None:
        """Apply changed settings; existing objects may exceed the new limits."""
        self._checkpoint_interval_s = settings.store.checkpoint_interval_ms / 1000
        self.compactor.apply_settings(settings.store)
        self.vhost.ports.apply_settings(keep_poisoned=settings.amqp.keep_poisoned)
        self.vhost.limits.apply_settings(limits_of(settings))

    @property
    def at_rest(self) -> bool:
        """Whether no work is pending: no due deadline, delivery, read or sync. Acks may be unwritten."""
        due_ms = self.deadlines.next_ms
        due = due_ms is not None and due_ms <= self._turn.now_ms
        return not (due or self._settled or self.committer.busy or self.workers.busy or self.reader.busy)

    def run_due(self) -> None:
        """Run the actions of all deadlines that are due."""
        while (next_ms := self.deadlines.next_ms) is not None and next_ms <= self._turn.now_ms:
            self.deadlines.begin_turn()
            self.deadlines.run(self._turn.now_ms)

    def restore(self, recovered: Recovered, sealed: Mapping[int, int]) -> None:
        """Restore the recovered vhost. Messages in slot files are settled here, and their ids are not reused, even
        those of transient messages, which were never in the log.
        Shapes: `sealed` maps the number of each tap's queue to the id after the last message in its slot files.
        Raises: CorruptStore if messages have no queue, unless damage is quarantined: then a queue is created for them.
        """
        self.recovered_clean = recovered.clean
        vhost = self.vhost
        restore(vhost, recovered.topology)
        vhost.queues.reserve_numbers(max([recovered.next_queue_number, *(number + 1 for number in sealed)]))
        lost: list[QueueState] = []
        levels = {level.number: level for queue in vhost.queues.values() for level in queue.levels}
        for number, state in recovered.queues.items():
            level = levels.get(number)
            if level is None and (lowest := levels.get(number & QUEUE_NUMBERS)) is not None:
                level = vhost.queues[lowest.queue.name].level_numbered(number)
            if level is None:
                lost.append(state)
            else:
                level.restore(state, redelivered=not recovered.clean)
        for queue in vhost.queues.values():
            queue.find_returned()
        if lost:
            self._restore_lost(lost, deleted_numbers(recovered.topology), redelivered=not recovered.clean)
        for queue in vhost.queues.taps.values():
            if end := max(sealed.get(queue.number, 0), queue.first_id):
                queue.level.lose_sealed(end)
                self.schedule.work()  # a turn logs it
        vhost.restored()
        self._parts.opened(vhost)

    @property
    def deduplicates(self) -> bool:
        """Whether a deduplicating queue has messages."""
        return any(queue.duplicates is not None and queue.waiting for queue in self.vhost.queues.values())

    def read_duplicates(self) -> None:
        """Read the messages of the deduplicating queues. *Blocking.* Raises: StoreFailed.

        Invariant: nothing has happened since `restore`.
        Cost: one read of each of these messages.
        """
        loader = MessageLoader()
        for queue in self.vhost.queues.values():
            for level in queue.all_levels if queue.duplicates is not None else ():
                for slot in level.manager.slots.values():
                    wanted = list(slot.acks.unsettled(0, slot.length))
                    if not wanted:
                        continue
                    segments = tuple(slot.segments)
                    found = self.store.slots.read(level.number, slot.first, slot.end, wanted, segments, loader)
                    for index in wanted:
                        if (message := found[index]) is not None:
                            queue.note_at(slot, index, message)

    def _restore_lost(self, states: Iterable[QueueState], deleted: set[int], *, redelivered: bool) -> None:
        """Restore the messages of queues without a declaration, except those of deleted queues."""
        for state in states:
            messages = sum(slot.unsettled for slot in state.slots)
            if not deleted.isdisjoint((state.number, state.number & QUEUE_NUMBERS)) or not messages:
                self.store.discard(state)
                continue
            reason = f"the declaration of queue number {state.number}, which holds {messages} messages, cannot be read"
            if not self._quarantines:
                raise self.store.log.corrupt(min(state.slots[0].segments, default=0) << OFFSET_BITS, reason)
            queue = self.vhost.queues.add_recovered(state.number, self.vhost.new_name)
            queue.level.restore(state, redelivered=redelivered)
            _log.error(
                "queue.recovered",
                vhost=self.vhost.name,
                queue=queue.name,
                number=state.number,
                messages=messages,
                reason=reason,
            )

    def turn(self) -> int:
        """Log settlements, start a sync if one is due, deliver while it runs, and run due deadlines."""
        schedule = self.schedule
        schedule.due = False  # hot: set directly
        waiting_bytes = 0
        deadlines = self.deadlines
        if deadlines.units_left < TURN_SHARE:
            deadlines.begin_turn()
        while self._settled:
            self._settled.pop().log_settlements()
        if schedule.commits or self._log.waiting:
            schedule.commits = not self._parts.lasting  # hot: set directly
            waiting_bytes = self.committer.turn(self._turn.count, not schedule.delivers)
        seen = self._log.position
        if schedule.delivers:
            schedule.delivers = False  # hot: set directly
            self.workers.turn()
        now_ms = self._turn.now_ms
        due_ms = deadlines.next_ms if deadlines.earliest_ms <= now_ms else None
        if due_ms is not None and due_ms <= now_ms and not self._stops:
            deadlines.run(self._turn.now_ms)
            self._arm()
            schedule.work()
            deadlines.begin_turn()  # a new share for the publishers, however much work was due
        while self._settled:  # deliveries without acknowledgement
            self._settled.pop().log_settlements()
        if self._log.position != seen:  # the next turn writes the settlements and dead letters
            schedule.work()
        if self.pager.pressed:
            self._turn.page_out_later(self)
            schedule.work()
        return waiting_bytes

    def page_out(self) -> None:
        if self.pager.turn():
            self._turn.shorten()

    @property
    def has_work(self) -> bool:
        """Whether there is work for which no turn was scheduled; see `TurnEngine.has_work`."""
        return bool(self._settled) or self._log.waiting or self.deadlines.units_left < TURN_SHARE

    def page(self) -> None:
        """Recount the messages in memory and read the clock; called ten times a second.

        The clock may have advanced while timers did not, as when the machine slept.
        """
        self._turn.read_clock()
        self.pager.tick()
        due_ms = self.deadlines.next_ms
        if self.pager.pressed or (due_ms is not None and due_ms <= self._turn.now_ms):
            self.schedule.work()

    def tick(self) -> None:
        """Repair the queue logs, and start a checkpoint when one is due; called once a second."""
        if self._stops:
            return
        try:
            self.store.slots.repair()
        except StoreFailed as error:
            self.fail(error)
        if self._checkpoint.busy:
            return
        idle_s = self._loop.time() - self._checkpoint_at
        if self.checkpointer.rolled or (idle_s >= self._checkpoint_interval_s and self.checkpointer.changed):
            self._checkpoint_at = self._loop.time()
            self._checkpoint.start(self._checkpoint_and_compact())

    def save_space(self, *, on: bool) -> None:
        """Keep only one checkpoint if `on`, otherwise two again; see `VhostStore.save_space`."""
        if self._parts.lasting and not self._closed:
            saved = self._loop.run_in_executor(self._disk, partial(self.store.save_space, on=on))
            saved.add_done_callback(self._checkpoint_done)

    async def stop(self) -> None:
        """Write everything to disk and close the store; work that now becomes due waits for the next start."""
        self._stops = True
        await self._checkpoint.ended()
        if self._parts.lasting:
            self.store.slots.repair()  # as the next `tick` would
            while self._settled:
                self._settled.pop().log_settlements()
            await self.checkpointer.take(clean=True)
        self.close(clean=True)

    def free_computed(self) -> Iterator[None]:
        """Free caches and close files open for reading, in steps, and shrink sets that have become small."""
        self.workers.shrink()
        self.store.close_readers()
        yield
        yield from self.vhost.forget_misses()

    async def finish_sliced(self) -> None:
        """Finish sliced work, in several steps of the loop."""
        for _ in self.vhost.ports.sliced.finish():
            await asyncio.sleep(0)

    def messages(self, queue: Queue) -> LocalMessages:
        """Return the messages of a queue, for an operator."""
        return self._parts.messages(self.vhost, queue, self.reader, self.committer)

    async def frozen(self, work: Callable[[], None]) -> None:
        """Take a checkpoint, and run *blocking* work in its thread, so that no file is removed and no entry is moved.

        Raises: an error of the work itself, without ending the broker; the error of the checkpoint, which ends it;
            ValueError when the broker stops or the vhost ends, and on a node of a cluster.
        """
        if not self._parts.lasting:
            raise ValueError("the messages of a cluster are in PostgreSQL: use slotmq cluster backup")
        while self._checkpoint.busy:
            await self._checkpoint.ended()
        if self._stops:
            raise ValueError("the broker is stopping")
        done: asyncio.Future[None] = self._loop.create_future()
        self._checkpoint.start(self._run_frozen(work, done))
        await done

    def retire(self) -> None:
        """Announce that the store is about to close, so that the slot writer and snapshots stop using it."""
        self.retired = True

    async def discard(self) -> None:
        """End the engine of a deleted vhost: nothing is written, and its objects are freed over several turns."""
        self.vhost.answers.abandon()
        self._stops = True
        await self._checkpoint.ended()
        self.vhost.tally.deleted(self.vhost.queues.declared_count)
        await self.dismantle()
        self.close()
        self._turn.engines.remove(self)

    async def abandon(self, error: CorruptStore) -> None:
        """End the engine of a vhost whose store is damaged: its files stay unchanged."""
        self._stops = True
        await self._checkpoint.ended()
        self.committer.abort(error)
        self.close()
        self._turn.engines.remove(self)  # so that no turn records the deletion of queues
        self.vhost.sweep.end()

    async def dismantle(self) -> None:
        """Free the objects of the vhost over several turns."""
        for _ in self.vhost.dismantle():
            await asyncio.sleep(0)
            self.deadlines.begin_turn()
        self.deadlines.end()
        self.pager.end()

    def close(self, *, clean: bool = False) -> None:
        """End the threads and close the store; unwritten data is lost. A second call does nothing."""
        if self._closed:
            return
        self._closed = self._stops = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.deadlines.end()
        self.committer.close()
        self.reader.close()
        self._disk.shutdown(wait=True)
        self.store.close(clean=clean)

    def log_settled(self) -> None:
        """Log messages that were settled outside of a turn, and schedule the write."""
        while self._settled:
            self._settled.pop().log_settlements()
        self.schedule.work()

    def _arm(self) -> None:
        """Schedule a turn for the next deadline."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        next_ms = self.deadlines.next_ms
        if next_ms is not None and not self._stops:
            wait_ms = min(max(next_ms - self._turn.now_ms, 0), ALARM_MAX_MS)
            self._alarm = self._loop.call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.schedule.work()
        if (self.deadlines.next_ms or 0) > self._turn.now_ms:
            self._arm()  # the timer rang a little early, or after ALARM_MAX_MS

    async def _checkpoint_and_compact(self) -> None:
        await self.checkpointer.take()
        await self.compactor.run()

    async def _run_frozen(self, work: Callable[[], None], done: asyncio.Future[None]) -> None:
        failure: BaseException | None = None
        try:
            await self.checkpointer.take()
            try:
                await self._loop.run_in_executor(self._disk, work)
            except Exception as error:  # noqa: BLE001 - the caller that asked for the work gets the error
                failure = error
        except BaseException as error:
            failure = error
            raise
        finally:
            if not done.done():
                done.set_exception(failure) if failure is not None else done.set_result(None)

    def _checkpoint_done(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)
