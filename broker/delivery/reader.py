"""Reads paged-out slots back in a thread, and hands their messages to the slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from bitarray import bitarray

from broker.delivery.revival import Revival, weigh
from broker.event_log import get_logger
from broker.slots.slot import Tenure

if TYPE_CHECKING:
    from broker.core.message import Message
    from broker.core.stream import Stream
    from broker.slots.slot import Slot
    from broker.store.store import VhostStore

__all__ = ["SlotReader"]

_log = get_logger()

_SETTLED: Final = bitarray("1")


class SlotReader:
    """Reads one slot at a time per request; requests for a slot that is being read wait for the same read.

    Invariant: a slot is loaded only if it still exists; what was settled meanwhile stays settled. A turn follows each
        read: what it led to, an expiry or a dead letter, is logged and delivered by that.
    """

    def __init__(
        self,
        store: VhostStore,
        loop: asyncio.AbstractEventLoop,
        kept: Callable[[Stream, Slot], None],
        fail: Callable[[BaseException], None],
        schedule: Callable[[], None],
    ) -> None:
        """`schedule` has a turn run soon."""
        self._store = store
        self._loop = loop
        self._kept = kept
        self._fail = fail
        self._schedule = schedule
        self._measuring = 0
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="slot-reader")
        self._waiting: dict[Slot, list[Callable[[], None]]] = {}
        self._revival = Revival()
        self.reads = 0

    @property
    def busy(self) -> bool:
        """Whether something is being read."""
        return bool(self._waiting or self._measuring)

    def read(self, stream: Stream, slot: Slot, then: Callable[[], None]) -> None:
        """Has `then` called on the loop once the slot's messages are in memory, or the slot is gone."""
        waiting = self._waiting.get(slot)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[slot] = [then]
        self.reads += 1
        wanted = list(slot.acks.unsettled(0, slot.length)) if slot.acks.count else None
        needed = tuple(slot.segments)
        for segment in needed:
            self._store.add_live(segment, 1)  # the files stay until they are read, whatever becomes of the slot
        future = self._loop.run_in_executor(
            self._threads, self._store.read_slot, stream.number, slot.first, slot.end, wanted, needed, self._revival
        )
        future.add_done_callback(lambda done: self._loaded(done, stream, slot, needed))

    def read_ahead(self, stream: Stream, slot: Slot) -> None:
        """Starts reading the slot after this one, when it lies on disk: it is asked for next."""
        following = stream.manager.after(slot)
        if following is not None and following.contents is None and following not in self._waiting:
            self.read(stream, following, lambda: None)

    def measure(self, stream: Stream, slot: Slot) -> None:
        """Tells the stream's slot manager the body sizes of a slot that lies on disk, as soon as they were read."""
        self._measuring += 1
        wanted = list(slot.acks.unsettled(0, slot.length))
        needed = tuple(slot.segments)
        for segment in needed:
            self._store.add_live(segment, 1)
        future = self._loop.run_in_executor(
            self._threads, self._store.body_sizes, stream.number, slot.first, slot.end, wanted, needed
        )
        future.add_done_callback(lambda done: self._measured(done, stream, slot, needed))

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _loaded(
        self, done: asyncio.Future[list[Message | None]], stream: Stream, slot: Slot, needed: tuple[int, ...]
    ) -> None:
        waiting = self._waiting.pop(slot)
        if done.cancelled():
            return
        done.exception()  # looked at below if the slot is still there; the files of one that went may be gone as well
        try:
            for segment in needed:
                self._store.drop_live(segment, 1)
            if slot.tenure is not Tenure.DELETED and slot.contents is None:
                self._load(stream, slot, done.result())
            for then in waiting:
                then()
            self._schedule()
        except Exception as error:  # noqa: BLE001 - a lost store, or a defect: nothing may be confirmed after it
            self._fail(error)

    def _measured(self, done: asyncio.Future[list[int]], stream: Stream, slot: Slot, needed: tuple[int, ...]) -> None:
        self._measuring -= 1
        if done.cancelled():
            return
        done.exception()
        try:
            for segment in needed:
                self._store.drop_live(segment, 1)
            if slot.tenure is not Tenure.DELETED:
                stream.manager.sizes_known(slot, done.result())
                stream.queue.enforce()
            self._schedule()
        except Exception as error:  # noqa: BLE001 - a lost store, or a defect: nothing may be confirmed after it
            self._fail(error)

    def _load(self, stream: Stream, slot: Slot, found: list[Message | None]) -> None:
        acks = slot.acks
        if acks.count:  # some of it may have been settled while it was read
            for index in acks.bits.search(_SETTLED):
                found[index] = None
        slot.contents = found
        # The pager takes the unsettled part of a slot's charge; what was settled before the read is not known any more.
        charge, missing = weigh(found)
        slot.bytes = charge * slot.length // max(slot.unsettled, 1)
        lost: list[int] = []
        if missing > acks.count:
            lost = [index for index in slot.ready_indexes() if found[index] is None]
        self._kept(stream, slot)
        if lost:
            _log.error("messages.lost", queue=stream.queue.name, slot=slot.first, count=len(lost))
            stream.lose(slot, lost)
