"""The compactor: free log segments that a few old messages pin, by copying those messages to the tail of the log.

It works between two checkpoints, in the same task, one segment at a time. `broker.store.compaction` has the order of
the steps. Each step on the loop is cut into slices, between which the loop turns. A segment from which
consumers are reading is left alone: it will be free soon, and copying its rest would be wasted work.
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

SLOTS: Final = 150  # examined, or removed from a segment, between two turns of the loop
ENTRIES_COST: Final = 20  # messages of a slot that cost as much as a slot
DRAINING_PART: Final = 8  # a segment that lost this part of its slots since the last check is being emptied
MESSAGES: Final = 25  # relocated between two turns; each without a neighbour needs a separate write, some 20 us

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
        self._seen: dict[int, int] = {}  # the number of slots that kept each segment at the last check
        self.relocated = 0

    def apply_settings(self, settings: Store) -> None:
        """Apply changed settings, from the next segment on."""
        self._below_ratio = settings.compact_below_ratio

    async def run(self) -> None:
        """Relocate the emptiest segment below the ratio that is not being read; the next checkpoint removes its file.

        Raises: StoreFailed.
        """
        if not self._below_ratio:
            return
        loop = asyncio.get_running_loop()
        for segment in self._settled():
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

    def _settled(self) -> list[int]:
        """Return the candidate segments that have kept nearly all of their slots since the last check."""
        live = self._store.log.live
        seen, self._seen = self._seen, dict(live)
        part = DRAINING_PART
        return [one for one in self._store.compactable() if one in seen and live[one] * part > seen[one] * (part - 1)]

    async def _holders(self, segment: int) -> tuple[list[Holder], list[SlotReference]]:
        """Return the slots that keep a segment, and the messages of each that may need it.

        Invariant: no other slot will ever need it.
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
                        left -= len(unsettled) // ENTRIES_COST
                        end = slot.first + slot.logged
                        segments = frozenset(slot.segments)
                        holders.append((level, slot))
                        references.append(SlotReference(level.number, slot.first, end, unsettled, segments))
                    if left <= 0:
                        await asyncio.sleep(0)
                        left = SLOTS
        return holders, references

    def _apply(self, holders: list[Holder], moves: list[MovedRecord]) -> None:
        """Point slots and resident messages at the copies; slots that were deleted meanwhile need nothing."""
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
        """Remove the segment from the slots: none of their messages is there any longer."""
        for done, (_, slot) in enumerate(holders, 1):
            if slot.tenure is not Tenure.DELETED:
                slot.segments.discard(segment)
                self._store.drop_live(segment, 1)
            if done % SLOTS == 0:
                await asyncio.sleep(0)


def _unsettled(slot: Slot) -> Sequence[int]:
    """Return the unsettled messages of a slot that have an entry; a range where these are all."""
    if slot.unlogged:  # transient messages, in memory only
        memory = set(slot.unlogged)
        return [index for index in slot.acks.unsettled(0, slot.logged) if index not in memory]
    return list(slot.acks.unsettled(0, slot.logged)) if slot.acks.count else range(slot.logged)
