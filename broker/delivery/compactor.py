"""The compactor: frees log segments that a few old messages pin, by copying those messages to the tail of the log.

It works between two checkpoints, in the same task, one segment at a time; the order of the steps is that of
`broker.store.compaction`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.event_log import get_logger
from broker.slots.slot import Slot, Tenure
from broker.store.compaction import Move, SlotReference

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from broker.core.queue.stream import Stream
    from broker.core.vhost import Vhost
    from broker.delivery.committer import Committer
    from broker.store.store import VhostStore

__all__ = ["Compactor"]

_log = get_logger()


class Compactor:
    """Relocates what is left of nearly empty segments.

    Units: ``below_ratio`` is the part of a segment that may still be needed for it to be worth rewriting; 0 never is.
    """

    def __init__(
        self, vhost: Vhost, store: VhostStore, committer: Committer, thread: ThreadPoolExecutor, below_ratio: float
    ) -> None:
        self._vhost = vhost
        self._store = store
        self._committer = committer
        self._thread = thread
        self.below_ratio = below_ratio
        self.relocated = 0

    async def run(self) -> None:
        """Relocate the emptiest segment that is worth it; the next checkpoint removes its file.

        Raises: StoreFailed.
        """
        if not self.below_ratio:
            return
        loop = asyncio.get_running_loop()
        for segment in self._store.compactable():
            holders = self._holders(segment)
            references = [
                SlotReference(
                    stream.number, slot.first, slot.first + slot.logged, _unsettled(slot), frozenset(slot.segments)
                )
                for stream, slot in holders
            ]
            relocation = await loop.run_in_executor(
                self._thread, self._store.plan_relocation, segment, references, self.below_ratio
            )
            if relocation is None:
                continue
            self._store.append_relocation(relocation)
            await self._committer.drain()
            self._apply(segment, holders, self._store.finish_relocation(relocation))
            self.relocated += 1
            _log.info("segment.relocated", segment=segment, live_bytes=relocation.live_bytes)
            return

    def _holders(self, segment: int) -> list[tuple[Stream, Slot]]:
        return [
            (stream, slot)
            for queue in self._vhost.queues.values()
            for stream in queue.streams
            for slot in stream.manager.slots.values()
            if segment in slot.segments
        ]

    def _apply(self, segment: int, holders: list[tuple[Stream, Slot]], moves: list[Move]) -> None:
        """Points slots, and messages that are in memory, at the copies; slots that went meanwhile need nothing."""
        moved: dict[int, dict[int, Move]] = {}
        for one in moves:
            moved.setdefault(one.queue_number, {})[one.message_id] = one
        for stream, slot in holders:
            if slot.tenure is Tenure.DELETED:
                continue
            mine = moved.get(stream.number, {})
            for index in slot.acks.unsettled(0, slot.length):
                move = mine.get(slot.first + index)
                if move is None:
                    continue
                stream.refer(slot, move.position >> 32)
                message = slot.contents[index] if slot.contents is not None else None
                if message is not None:
                    message.position, message.record_bytes = move.position, move.size
            slot.segments.discard(segment)
            self._store.drop_live(segment, 1)


def _unsettled(slot: Slot) -> Sequence[int]:
    """Return the messages of a slot that are not settled and have an entry, without a list where all of them are."""
    if slot.unlogged:  # transient ones, which are in memory alone
        memory = set(slot.unlogged)
        return [index for index in slot.acks.unsettled(0, slot.logged) if index not in memory]
    return list(slot.acks.unsettled(0, slot.logged)) if slot.acks.count else range(slot.logged)
