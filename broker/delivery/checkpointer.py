"""The checkpointer: write the state of every queue, so that recovery is short and log segments can be removed.

A checkpoint is taken when the log has grown far enough, after an interval with changes, for a backup, and at a clean
stop. It records the log's position first and then the queues, slice by slice, while the broker works. Every change
after that position is in the log, and recovery may replay a record that the checkpoint already includes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.core.durable_topology import TopologySnapshot
from broker.core.queue.level import Level
from broker.core.topology.changes import Change
from broker.core.vhost import Vhost
from broker.delivery.committer import EngineCommitter
from broker.delivery.pager import Pager
from broker.event_log import get_logger
from broker.slots.slot import Slot
from broker.slots.states import Tenure
from broker.store.checkpoint import Checkpoint, QueueState, SlotState
from broker.store.spill import is_spilled
from broker.store.store import VhostStore

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SLICE: Final = 150  # slots per turn of the loop, about 0.4 ms; a level counts as a slot
CHANGES_AT_ONCE: Final = 500  # topology changes that a thread encodes in less than a millisecond
WRITE_COST: Final = 20  # a write to a queue log counts as this many slots
ENTRIES_PER_SLOT: Final = 20  # this many entries of a write count as one slot
# A checkpoint is due when replaying the log takes longer than writing a checkpoint. The larger of these limits applies.
REPLAY_BYTES: Final = 16 * 1024 * 1024  # the growth of the log since the last checkpoint
REPLAY_BYTES_SLOT: Final = 8 * 1024  # its growth for each slot of the last checkpoint

_log = get_logger()


class Checkpointer:
    """The checkpointer of one vhost."""

    def __init__(
        self,
        vhost: Vhost,
        store: VhostStore,
        committer: EngineCommitter,
        pager: Pager,
        thread: ThreadPoolExecutor,
        shorten: Callable[[], None],
    ) -> None:
        """`shorten` makes the next turn, which shares the loop with a slice, read less input."""
        self._vhost = vhost
        self._store = store
        self._committer = committer
        self._pager = pager
        self._executor = thread
        self._shorten = shorten
        self._position = store.log.position
        self._slots = 0  # in the last checkpoint
        self._left = 0  # of the current slice
        self._busy = asyncio.Lock()
        self.count = 0

    @property
    def rolled(self) -> bool:
        """Whether the log has grown enough since the last checkpoint: into a new segment, so that an older one may be
        removed, or so far that replaying it takes longer than writing the state.
        """
        before, now = self._position, self._store.log.position
        return before >> 32 != now >> 32 or now - before > max(REPLAY_BYTES, self._slots * REPLAY_BYTES_SLOT)

    @property
    def changed(self) -> bool:
        """Whether the log has grown since the last checkpoint, or another checkpoint would free segments."""
        return self._store.log.position != self._position or self._store.holds_back

    async def take(self, *, clean: bool = False) -> None:
        """Take a checkpoint. Raises: StoreFailed; the error that ended the broker or the vhost."""
        async with self._busy:
            self._committer.check()  # a failed broker must not save its state
            wide = self._vhost.wide
            # A message may be in the log but not in all of its queues; a transaction may be open.
            while wide.pending or self._store.log.grouping:
                if wide.pending:
                    wide.turn()
                await asyncio.sleep(0)
            checkpoint = await self._snapshot(clean=clean)
            await self._committer.drain()  # a checkpoint may refer only to records on disk
            self._position = checkpoint.position
            self._slots = sum([len(state.slots) for state in checkpoint.queues])
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._store.write_checkpoint, checkpoint, _let_others_run)
            self.count += 1
            _log.debug("checkpoint.written", queues=len(checkpoint.queues), clean=clean)

    async def _snapshot(self, *, clean: bool) -> Checkpoint:
        """Return the vhost's state. Queues are captured one after another: recovery replays the log after the position.

        Cost: about 2 us for each slot, and the entries of messages published since the last checkpoint; in slices of
            about half a millisecond, between which the loop turns.
        """
        store, vhost = self._store, self._vhost
        topology = TopologySnapshot(vhost, at_once=False)
        if clean:
            for level in _durable_levels(topology):
                level.log_settlements()  # the log ends at a clean checkpoint
        checkpoint = Checkpoint(store.log.position, clean, _interruptible(topology), [], vhost.queues.next_number)
        self._left = SLICE
        for _ in topology.copy_bindings():
            await self._turn(1)
        for level in _durable_levels(topology):
            state = await self._state(level)
            if state is not None:
                checkpoint.queues.append(state)
        return checkpoint

    async def _turn(self, cost: int) -> None:
        """Use a part of the slice; when the slice is used up, let the loop turn first."""
        if self._left <= 0:
            self._shorten()
            await asyncio.sleep(0)
            self._left = SLICE
        self._left -= cost

    async def _state(self, level: Level) -> QueueState | None:
        """Return the state of a level, or None if it was deleted. Messages that arrive after this call are not
        included: their records follow the position of the checkpoint.

        Invariant: the next id is captured with the list of slots, and with the slot that grows. So every id below it
            that is in no slot is settled, or is settled by a record after the position of the checkpoint.
        """
        await self._turn(0)
        manager = level.manager
        slots = list(manager.slots.values())
        next_id = manager.next_id
        newest = [self._slot_state(level, slot) for slot in slots[-1:] if slot.length]
        states: list[SlotState] = []
        for slot in slots[:-1]:
            await self._turn(0)
            if slot.tenure is not Tenure.DELETED:
                states.append(self._slot_state(level, slot))
        self._left -= 1
        return None if level.deleted else QueueState(level.number, next_id, states + newest)

    def _slot_state(self, level: Level, slot: Slot) -> SlotState:
        self._left -= 1
        if slot.logged < slot.length:
            self._left -= WRITE_COST + (slot.length - slot.logged) // ENTRIES_PER_SLOT
            self._pager.log_entries(level, slot, for_checkpoint=True)
        return SlotState(
            first=slot.first,
            end=slot.end,
            settled=_settled(slot),
            returns=slot.returns_of(range(slot.length)),
            segments={segment: 1 for segment in slot.segments if not is_spilled(segment)},
            size_bytes=slot.bytes,
            redelivered=slot.recovered,
        )


def _durable_levels(topology: TopologySnapshot) -> Iterator[Level]:
    return (level for queue in topology.queues if queue.durable for level in queue.all_levels)


def _let_others_run() -> None:
    """Release the GIL for the thread of the loop."""
    time.sleep(0)


def _interruptible(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield changes, and let other threads run after each batch, because compiled code does not release the GIL."""
    for number, change in enumerate(changes, 1):
        yield change
        if number % CHANGES_AT_ONCE == 0:
            _let_others_run()


def _settled(slot: Slot) -> bytes:
    """Return a bit per message, set if it is settled or transient (lost with the process); empty if no bit is set."""
    if slot.volatile is None and not slot.unlogged:
        return slot.acks.to_bytes() if slot.acks.count else b""
    settled = slot.acks.bits(slot.length)
    if slot.volatile is not None:
        settled[: len(slot.volatile)] |= slot.volatile
    for index in slot.unlogged:
        settled[index] = 1
    return settled.tobytes()
