"""The checkpointer: writes down where every queue stands, so that recovery is bounded and log segments can go.

A checkpoint is taken when the log has rolled to a new segment, and at a clean stop. It is fuzzy: queues are snapshot a few at a
time while the broker works, and recovery replays the log from where the snapshot began; every record is idempotent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from broker.slots.slot import Slot
from broker.store.checkpoint import Checkpoint, QueueState, SlotState
from broker.store.spill import is_spilled

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from broker.core.queue import Queue
    from broker.core.vhost import Vhost
    from broker.delivery.committer import Committer
    from broker.delivery.pager import Pager
    from broker.store.store import VhostStore

__all__ = ["Checkpointer"]

SLICE_QUEUES: Final = 64  # queues snapshot per loop turn

_log = structlog.get_logger()


class Checkpointer:
    """Takes checkpoints of one vhost."""

    def __init__(
        self, vhost: Vhost, store: VhostStore, committer: Committer, pager: Pager, thread: ThreadPoolExecutor
    ) -> None:
        self._vhost = vhost
        self._store = store
        self._committer = committer
        self._pager = pager
        self._thread = thread
        self._position = store.log.position
        self._busy = asyncio.Lock()
        self.count = 0

    @property
    def rolled(self) -> bool:
        """Whether the log has begun a segment since the last checkpoint: an older one may be given back now."""
        return self._store.log.position >> 32 != self._position >> 32

    @property
    def changed(self) -> bool:
        """Whether the log has grown since the last checkpoint."""
        return self._store.log.position != self._position

    async def take(self, *, clean: bool = False) -> None:
        """Takes a checkpoint. Raises: StoreFailed."""
        async with self._busy:
            log = self._store.log
            position = self._position = log.position
            topology = self._vhost.topology()
            next_number = self._vhost.next_queue_number
            durable = [queue for queue in self._vhost.queues.values() if queue.durable]
            # what the snapshot will refer to has to be in the file before its entries may say so
            await self._committer.drain()
            states: list[QueueState] = []
            for count, queue in enumerate(durable, 1):
                if not queue.deleted:
                    states.append(await self._snapshot(queue))
                if count % SLICE_QUEUES == 0:
                    await asyncio.sleep(0)
            await self._committer.drain()
            checkpoint = Checkpoint(
                position=position,
                clean=clean,
                topology=topology,
                queues=states,
                next_queue_number=next_number,
            )
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._store.write_checkpoint, checkpoint)
            reclaimed = self._store.reclaim()
            self.count += 1
            _log.debug("checkpoint.written", queues=len(states), segments_reclaimed=reclaimed, clean=clean)

    async def _snapshot(self, queue: Queue) -> QueueState:
        """Returns where a queue stands, with its queue log complete up to here.

        Invariant: nothing is awaited once the slots are looked at, so the state is of one moment.
        """
        while not all(self._pager.log_entries(queue, slot) for slot in list(queue.manager.slots.values())):
            await self._committer.drain()
        queue.log_settlements()
        manager = queue.manager
        slots = [self._slot_state(slot) for slot in manager.slots.values() if slot.length]
        return QueueState(number=queue.number, next_id=manager.next_id, slots=slots)

    @staticmethod
    def _slot_state(slot: Slot) -> SlotState:
        settled = slot.acks.bits.copy()
        if len(settled) < slot.length:
            settled.extend(bytes(slot.length - len(settled)))
        for index in slot.volatile:
            settled[index] = 1
        if slot.contents is not None:
            for index, message in enumerate(slot.contents):
                if message is not None and (message.position < 0 or is_spilled(message.position)):
                    settled[index] = 1
        counts = {slot.first + index: count for index, count in slot.counts.items()}
        return SlotState(
            first=slot.first,
            end=slot.end,
            settled=settled.tobytes(),
            counts=counts,
            segments=dict.fromkeys(slot.segments, 1),
        )
