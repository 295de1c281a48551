"""The checkpointer: writes down where every queue stands, so that recovery is bounded and log segments can go.

A checkpoint is taken when the log has rolled to a new segment, now and then, and at a clean stop. Its snapshot is of
one loop turn; the work that grows with the traffic, completing the queue logs, is done before that, a few queues at a
time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker.event_log import get_logger
from broker.slots.slot import Slot
from broker.store.checkpoint import Checkpoint, QueueState, SlotState
from broker.store.spill import is_spilled

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from broker.core.stream import Stream
    from broker.core.vhost import Vhost
    from broker.delivery.committer import Committer
    from broker.delivery.pager import Pager
    from broker.store.store import VhostStore

__all__ = ["Checkpointer"]

SLICE_STREAMS: Final = 64  # streams looked at per loop turn

_log = get_logger()


class Checkpointer:
    """Takes checkpoints of one vhost."""

    def __init__(
        self,
        vhost: Vhost,
        store: VhostStore,
        committer: Committer,
        pager: Pager,
        thread: ThreadPoolExecutor,
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
            await self._complete_queue_logs()
            self._committer.check()  # what a broker that failed holds in memory is not to be written down
            checkpoint = self._snapshot(clean=clean)
            self._position = checkpoint.position
            await self._committer.drain()  # the checkpoint may refer to what is on disk only
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._store.write_checkpoint, checkpoint)
            self.count += 1
            _log.debug("checkpoint.written", queues=len(checkpoint.queues), clean=clean)

    async def _complete_queue_logs(self) -> None:
        """Writes most of the entries that the snapshot will need, a few queues per loop turn."""
        await self._committer.drain()
        for count, stream in enumerate(self._durable_streams(), 1):
            if not stream.deleted:
                for slot in list(stream.manager.slots.values()):
                    self._pager.log_entries(stream, slot, for_checkpoint=True)
            if count % SLICE_STREAMS == 0:
                await asyncio.sleep(0)

    def _snapshot(self, *, clean: bool) -> Checkpoint:
        """Returns the state of this moment.

        Cost: n slots, about 3 us each, and the entries of what was published since they were last completed.
        """
        states: list[QueueState] = []
        for stream in self._durable_streams():
            stream.log_settlements()
            manager = stream.manager
            for slot in manager.slots.values():
                self._pager.log_entries(stream, slot, for_checkpoint=True)
            slots = [self._slot_state(slot) for slot in manager.slots.values() if slot.length]
            states.append(QueueState(number=stream.number, next_id=manager.next_id, slots=slots))
        return Checkpoint(
            position=self._store.log.position,
            clean=clean,
            topology=self._vhost.topology_snapshot(),
            queues=states,
            next_queue_number=self._vhost.next_queue_number,
        )

    def _durable_streams(self) -> list[Stream]:
        return [stream for queue in self._vhost.queues.values() if queue.durable for stream in queue.streams]

    @staticmethod
    def _slot_state(slot: Slot) -> SlotState:
        settled = slot.acks.bits.copy()
        settled.extend(bytes(slot.length - len(settled)))
        # A transient message ends with the process: it is marked when it is on disk, and listed when it is not.
        if slot.volatile is not None:
            settled[: len(slot.volatile)] |= slot.volatile
        for index in slot.unlogged:
            settled[index] = 1
        return SlotState(
            first=slot.first,
            end=slot.end,
            settled=settled.tobytes(),
            counts=dict(slot.counts),
            segments={segment: 1 for segment in slot.segments if not is_spilled(segment)},
            size_bytes=slot.bytes,
            redelivered=slot.recovered,
        )
