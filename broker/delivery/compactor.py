"""The compactor: free log segments that a few old messages pin, by copying those messages to the tail of the log.

It runs after a checkpoint, in the checkpoint's task, and frees one segment at most; `broker.store.compaction` lists the
steps in their order. Each step on the loop is divided into slices, between which the loop turns. A segment from which
consumers are reading is not compacted, because it will soon be free anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.core.queue.level import Level
from broker.core.vhost import Vhost
from broker.delivery.committer import EngineCommitter
from broker.event_log import get_logger
from broker.settings.storage import Store
from broker.slots.slot import Slot
from broker.slots.states import Tenure
from broker.store.compaction import MovedRecord, SlotReference
from broker.store.segment import OFFSET_BITS
from broker.store.store import VhostStore

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SLOTS: Final = 150  # slots examined, or removed from a segment, between two turns of the loop
ENTRIES_PER_SLOT: Final = 20  # examining this many messages takes as long as examining a slot
DRAINING_PART: Final = 8  # consumers are emptying a segment that lost an eighth of its slots since the last check
MESSAGES: Final = 25  # messages relocated between two turns; each may need a separate write, about 20 us

_log = get_logger()

Holder = tuple["Level", Slot]


class Compactor:
    """The compactor of one vhost.

    Units: a segment is relocated when less than `below_ratio` of it is still needed; 0 switches compaction off.
    """

    def __init__(
        self,
        vhost: Vhost,
        store: VhostStore,
        committer: EngineCommitter,
        thread: ThreadPoolExecutor,
        below_ratio: float,
    ) -> None:
        self._vhost = vhost
        self._store = store
        self._committer = committer
        self._executor = thread
        self._below_ratio = below_ratio
        self._seen: dict[int, int] = {}  # the number of slots with records in each segment, at the last check
        self.relocated = 0

    def apply_settings(self, settings: Store) -> None:
        """Apply changed settings, from the next segment on."""
        self._below_ratio = settings.compact_below_ratio

    async def run(self) -> None:
        """Relocate the segment with the fewest references that is below the ratio and is not being read. Later
        checkpoints remove its file. Raises: StoreFailed; the error that ended the broker or the vhost.
        """
        if not self._below_ratio:
            return
        loop = asyncio.get_running_loop()
        for segment in self._candidates():
            holders, references = await self._holders(segment)
            relocation = await loop.run_in_executor(
                self._executor, self._store.plan_relocation, segment, references, self._below_ratio
            )
            if relocation is None:
                continue
            left = True
            while left:
                left = self._store.append_relocation(relocation, MESSAGES)
                await asyncio.sleep(0)
            await self._committer.drain()
            self._apply(holders, self._store.finish_relocation(relocation, MESSAGES))
            while relocation.left:
                await asyncio.sleep(0)
                self._apply(holders, self._store.finish_relocation(relocation, MESSAGES))
            await self._release(segment, holders)
            self.relocated += 1
            _log.info("segment.relocated", segment=segment, live_bytes=relocation.live_bytes)
            return

    def _candidates(self) -> list[int]:
        """Return the segments that may be compacted and have kept nearly all of their slots since the last check."""
        live = self._store.log.live
        seen, self._seen = self._seen, dict(live)
        part = DRAINING_PART
        return [one for one in self._store.compactable() if one in seen and live[one] * part > seen[one] * (part - 1)]

    async def _holders(self, segment: int) -> tuple[list[Holder], list[SlotReference]]:
        """Return the slots with records in a segment, and the messages of each that may be there.

        Invariant: no other slot will ever have records in the segment.
        """
        holders: list[Holder] = []
        references: list[SlotReference] = []
        left = SLOTS
        for queue in list(self._vhost.queues.values()):
            for level in queue.all_levels:
                for slot in list(level.manager.slots.values()):
                    left -= 1
                    if segment in slot.segments and slot.tenure is not Tenure.DELETED:
                        unsettled = _unsettled(slot)
                        left -= len(unsettled) // ENTRIES_PER_SLOT
                        end = slot.first + slot.logged
                        segments = frozenset(slot.segments)
                        holders.append((level, slot))
                        references.append(SlotReference(level.number, slot.first, end, unsettled, segments))
                    if left <= 0:
                        await asyncio.sleep(0)
                        left = SLOTS
        return holders, references

    def _apply(self, holders: list[Holder], moves: list[MovedRecord]) -> None:
        """Set the new positions in slots and resident messages, unless these have been deleted or settled."""
        for move in moves:
            _, slot = holders[move.slot_index]
            index = move.message_id - slot.first
            if slot.tenure is Tenure.DELETED or index in slot.acks:
                continue
            if slot.add_segment(move.position >> OFFSET_BITS):
                self._store.add_live(move.position >> OFFSET_BITS, 1)
            message = slot.contents[index] if slot.contents is not None else None
            if message is not None:
                message.recorded(move.position, move.size)

    async def _release(self, segment: int, holders: list[Holder]) -> None:
        """Remove the segment from its slots, whose messages are no longer there."""
        for done, (_, slot) in enumerate(holders, 1):
            if slot.tenure is not Tenure.DELETED:
                slot.segments.discard(segment)
                self._store.drop_live(segment, 1)
            if done % SLOTS == 0:
                await asyncio.sleep(0)


def _unsettled(slot: Slot) -> Sequence[int]:
    """Return the unsettled messages of a slot that have a queue-log entry; a range if these are all."""
    if slot.unlogged:
        unlogged = set(slot.unlogged)
        return [index for index in slot.acks.unsettled(0, slot.logged) if index not in unlogged]
    return list(slot.acks.unsettled(0, slot.logged)) if slot.acks.count else range(slot.logged)
