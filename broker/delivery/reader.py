"""The slot reader: read paged-out slots back, on the loop from the page cache or in a thread from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from bitarray import bitarray

from broker.core.message.delay import due_ms_of
from broker.core.message.message import Message
from broker.core.queue.holding import FETCH_BYTES
from broker.core.queue.level import Level
from broker.delivery.message_loader import MessageLoader, total_charge
from broker.event_log import get_logger
from broker.slots.slot import Slot
from broker.slots.states import Tenure
from broker.store.store import VhostStore

_log = get_logger()

_SETTLED: Final = bitarray("1")

READ_COST: Final = 40  # a read on the loop takes as long as the delivery of this many messages

T = TypeVar("T")


class SlotReader:
    """The reader of one vhost. Calls of `read` for a slot that is being loaded share one read.

    Units: `reads` counts loaded slots; `spent` is the cost of reads on the loop, in delivered messages.
    Invariant: a slot is loaded only if it still exists; messages settled in the meantime stay settled. A turn follows
        each read in a thread: it logs and delivers the results, such as expiries and dead letters.
    """

    def __init__(
        self,
        store: VhostStore,
        loop: asyncio.AbstractEventLoop,
        opened: Callable[[Level, Slot], None],
        fail: Callable[[BaseException], None],
        schedule: Callable[[], None],
    ) -> None:
        """`schedule` schedules a turn, `opened` counts a slot that is in memory again, `fail` ends the broker."""
        self._store = store
        self._loop = loop
        self._opened = opened
        self._fail = fail
        self._schedule = schedule
        self._reading: set[asyncio.Future[Any]] = set()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="slot-reader")
        self._waiting: dict[Slot, list[Callable[[], None]]] = {}
        self._loader = MessageLoader()
        self._from_disk = False  # the last slot was not in the page cache
        self.reads = 0
        self.spent = 0

    @property
    def busy(self) -> bool:
        """Whether a read is in progress."""
        return bool(self._reading)

    def read(self, level: Level, slot: Slot, then: Callable[[], None]) -> None:
        """Call `then` on the loop once the slot's messages are in memory or it is deleted; not if the read fails."""
        waiting = self._waiting.get(slot)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[slot] = [then]
        self.reads += 1
        self._read(level, slot, partial(self._loaded, level, slot), self._store.slots.read, self._loader)

    def read_cached(self, level: Level, slot: Slot) -> bool:
        """Read a slot at once if the page cache has it, and return whether it is in memory now."""
        if slot in self._waiting:
            return False
        wanted = list(slot.acks.unsettled(0, slot.length)) if slot.acks.count else range(slot.length)
        found = self._store.slots.read_cached(level.number, slot.first, slot.end, wanted, self._loader)
        self._from_disk = not found
        if found:
            self._load(level, slot, found)
            self.reads += 1
            self.spent += READ_COST + slot.length
        return bool(found)

    def read_ahead(self, level: Level, slot: Slot) -> None:
        """Start to load the slot after this one, which is needed next, if the last read missed the page cache."""
        if not self._from_disk:
            return
        following = level.manager.after(slot)
        if following is None or following.contents is not None or following in self._waiting:
            return
        if not self.read_cached(level, following):
            self.read(level, following, lambda: None)

    def measure(self, level: Level, slot: Slot) -> None:
        """Read the body sizes of a slot that is on disk, and pass them to the level's slot manager."""
        self._read(level, slot, partial(self._measured, level, slot), self._store.slots.body_sizes)

    def moments(self, level: Level, slot: Slot, then: Callable[[Sequence[int]], None]) -> None:
        """Call `then` on the loop with the time at which each message of a slot is due. Shapes: one time per message,
        of any value for a settled message; none if the slot was deleted before it was read.
        """
        self._read(level, slot, partial(_pass_on, then, (slot,), ()), self._read_moments)

    def fetch(
        self,
        level: Level,
        wanted: Sequence[tuple[int, Slot]],
        then: Callable[[Mapping[int, Message | None]], None],
    ) -> None:
        """Call `then` on the loop with the first wanted messages by id, at least one. Shapes: `wanted` are message ids
        with their slots. An unreadable message is None. The mapping may be empty if a slot has been deleted.
        """
        slots = {slot for _, slot in wanted}
        segments = tuple({segment for slot in slots for segment in slot.segments})
        self._submit(
            segments,
            partial(_pass_on, then, slots, {}),
            self._store.slots.read_some,
            level.number,
            [one for one, _ in wanted],
            segments,
            FETCH_BYTES,
            self._loader,
        )

    async def finish(self) -> None:
        """Wait until the reads in progress have ended."""
        if self._reading:
            await asyncio.wait(self._reading)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _read(
        self,
        level: Level,
        slot: Slot,
        then: Callable[[asyncio.Future[T]], None],
        work: Callable[..., T],
        *more: Any,
    ) -> None:
        """Run a read of the unsettled messages of a slot in a thread, and call `then` on the loop with its future."""
        segments = tuple(slot.segments)
        wanted = list(slot.acks.unsettled(0, slot.length)) if slot.acks.count else None
        self._submit(segments, then, work, level.number, slot.first, slot.end, wanted, segments, *more)

    def _submit(
        self,
        segments: tuple[int, ...],
        then: Callable[[asyncio.Future[T]], None],
        work: Callable[..., T],
        *arguments: Any,
    ) -> None:
        """Run a read in a thread and call `then` on the loop with its future."""
        for segment in segments:
            self._store.add_live(segment, 1)  # keep the files until they are read, even if the slots are deleted
        future = self._loop.run_in_executor(self._threads, work, *arguments)
        self._reading.add(future)
        future.add_done_callback(partial(self._done, segments, then))

    def _done(
        self, segments: tuple[int, ...], then: Callable[[asyncio.Future[T]], None], done: asyncio.Future[T]
    ) -> None:
        self._reading.discard(done)
        if done.cancelled():
            return
        done.exception()  # marks the error as retrieved: `then` ignores it if the slot and its files were deleted
        try:
            self._store.unpin(segments)
            then(done)
            self._schedule()
        except Exception as error:  # noqa: BLE001 - a lost store, or a defect: nothing may be confirmed after it
            self._fail(error)

    def _loaded(self, level: Level, slot: Slot, done: asyncio.Future[list[Message | None]]) -> None:
        waiting = self._waiting.pop(slot)
        if slot.tenure is not Tenure.DELETED and slot.contents is None:
            self._load(level, slot, done.result())
        for then in waiting:
            then()

    def _measured(self, level: Level, slot: Slot, done: asyncio.Future[list[int]]) -> None:
        if slot.tenure is not Tenure.DELETED:
            level.manager.sizes_known(slot, done.result())
            level.queue.enforce()

    def _read_moments(
        self, number: int, first: int, end: int, wanted: Sequence[int] | None, segments: tuple[int, ...]
    ) -> list[int]:
        """Return when the messages of a slot are due, reading the message where an entry is damaged. *Blocking.*"""
        due_ms = self._store.slots.read_due(number, first, end)
        missing = [index for index in (range(end - first) if wanted is None else wanted) if not due_ms[index]]
        if missing:
            messages = self._store.slots.read(number, first, end, missing, segments, self._loader)
            for index in missing:
                due_ms[index] = due_ms_of(messages[index])
        return due_ms

    def _load(self, level: Level, slot: Slot, found: list[Message | None]) -> None:
        acks = slot.acks
        if acks.count:  # messages may have been settled during the read
            for index in acks.bits(slot.length).search(_SETTLED):
                found[index] = None
        charge, missing = total_charge(found)
        slot.load(found, charge)
        lost: list[int] = []
        if missing > acks.count:
            lost = [index for index in slot.ready_indexes() if found[index] is None]
        self._opened(level, slot)
        if lost:
            _log.error("messages.lost", queue=level.queue.name, slot=slot.first, count=len(lost))
            level.lose(slot, lost)


def _pass_on(then: Callable[[T], None], slots: Iterable[Slot], empty: T, done: asyncio.Future[T]) -> None:
    """Call `then` with the result of a read, or with `empty` if it failed and a slot has been deleted."""
    deleted = any(slot.tenure is Tenure.DELETED for slot in slots)
    then(empty if deleted and done.exception() else done.result())
