"""Rows leased to this node: their adoption by its levels, and their reconciliation after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from bitarray import bitarray

from broker.cluster.chunk import Chunk, ChunkLoader, DamagedChunk
from broker.cluster.chunk_reader import ChunkReader
from broker.cluster.database_rows import LeasedRow
from broker.cluster.errors import Unreachable
from broker.cluster.shared_level import SharedLevels
from broker.cluster.shared_slot import Returned, SharedSlot
from broker.event_log import get_logger

_log = get_logger()

PAUSE_S: Final = 0.05
Place = tuple[int, int]  # level and number of a slot


class Arrivals:
    """The rows of a lease. Invariant: ``rows`` are leased, and their levels have not adopted the messages yet."""

    def __init__(self, levels: SharedLevels, reader: ChunkReader) -> None:
        self._levels = levels
        self._reader = reader
        self._loader = ChunkLoader()
        self.rows: list[LeasedRow] = []

    def begin(self, rows: Sequence[LeasedRow]) -> None:
        self.rows = [row for row in rows if row.number is not None]

    async def read(self, is_over: Callable[[], bool]) -> Mapping[int, Chunk | DamagedChunk]:
        """Return the chunks of the rows. A failed read is repeated until `is_over` returns True; then return none."""
        while True:
            try:
                return await self._reader.read(self.rows)
            except Unreachable:
                if is_over():
                    return {}
                await asyncio.sleep(PAUSE_S)

    def adopt(self, chunks: Mapping[int, Chunk | DamagedChunk]) -> dict[int, int]:
        """Pass the messages to their levels, and return the number of messages by level."""
        rows, self.rows = self.rows, []
        counts: dict[int, int] = {}
        for row in rows:
            counts[row.level] = counts.get(row.level, 0) + self._adopt(row, chunks)
        return counts

    def _adopt(self, row: LeasedRow, chunks: Mapping[int, Chunk | DamagedChunk]) -> int:
        level = self._levels.find(row.level)
        if level is None or row.number is None:
            return 0
        indexes = list(row.bits.search(1))
        try:
            messages = self._loader.load(chunks[row.number], row.level, indexes, row.count)
        except DamagedChunk as error:
            _log.error(
                "chunk.damaged",
                queue=level.queue.name,
                table=f"chunk_{row.ring}",
                number=row.number,
                messages=len(indexes),
                reason=str(error),
            )
            level.keep_damaged(row.number, row.bits)
            return 0
        counts = {int(index): count for index, count in (row.counts or {}).items()}
        level.adopt(SharedSlot(row.level, row.number, row.count), indexes, messages, counts, row.seen)
        return len(indexes)

    def forget(self) -> None:
        """Discard the rows, because other nodes may lease them now."""
        self.rows = []


def reconciled(
    levels: SharedLevels, rows: Sequence[LeasedRow], arriving: Iterable[LeasedRow], returning: Iterable[Returned]
) -> list[Returned]:
    """Drop ready messages that are leased only according to this node. Return those that are leased only according to
    the database, so that the caller frees them.

    Returned messages are marked as redelivered, because they may have been delivered. Settlements that a crash of the
    database undid are repeated. Messages that are already free are removed from `returning`.
    Shapes: `rows` are all rows that the database has leased to this node, `arriving` are rows whose chunks are being
        read, `returning` are messages being returned.
    Invariant: no lease or call is running. If the answer to a call has not been handled yet, this node does not know
        the numbers of the call's slots, and does not return their messages.
    """
    held = {(row.level, row.number): row for row in rows if row.number is not None}
    known: dict[Place, bitarray] = {}
    for level in list(levels.by_number.values()):
        for number, bits in level.held().items():
            row = held.get((level.number, number))
            gone = bits if row is None else bits & ~row.bits
            if gone.any():
                dropped = level.drop(number, gone)
                _log.warning("lease.dropped", queue=level.queue.name, number=number, messages=dropped)
            known[level.number, number] = bits
    for row in arriving:
        if row.number is not None:
            _add(known, (row.level, row.number), row.bits)
    for one in returning:
        row = held.get(one.slot.place)  # without messages that are free by now: the keeper here may lease them again
        one.retain_only(None if row is None else row.bits)
        _add(known, one.slot.place, one.bits)
    _settle_again(levels, held, known)
    for batch in (levels.batch, levels.running):
        for slot, bits in batch.settlements() if batch is not None else ():
            if slot.number:
                _add(known, slot.place, bits)
    found: list[Returned] = []
    answering = levels.running.shares if levels.running is not None else {}
    for (level_number, number), row in held.items():
        mine = known.get((level_number, number))
        unknown = row.bits if mine is None else row.bits & ~mine
        share = answering.get(level_number)
        if unknown.any() and (mine is not None or share is None or share.sent_mine != row.bits):
            returned = Returned(SharedSlot(level_number, number, row.count))
            returned.add(unknown, seen=True)
            found.append(returned)
            _log.warning("lease.unknown", level=level_number, number=number, messages=unknown.count())
    return found


def _settle_again(levels: SharedLevels, held: Mapping[Place, LeasedRow], known: Mapping[Place, bitarray]) -> None:
    """Repeat, with the next call, the settlements that the database has lost."""
    for slot, bits in levels.unsaved:
        row, mine = held.get(slot.place), known.get(slot.place)
        if row is not None:
            undone = row.bits & bits if mine is None else row.bits & bits & ~mine
            if undone.any():
                settled = levels.batch.settling(slot)
                settled |= undone
                levels.batch.synchronize()
                levels.schedule()


def _add(known: dict[Place, bitarray], place: Place, bits: bitarray) -> None:
    whole = known.get(place)
    known[place] = bits.copy() if whole is None else whole | bits
