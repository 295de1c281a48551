"""Arrivals: rows that were leased to this node, until their messages are read and in their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.cluster.batch import SharedSlot
from broker.cluster.chunk import Chunk, DamagedChunk
from broker.cluster.chunk_loader import ChunkLoader
from broker.cluster.errors import Unreachable
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.cluster.chunk_reader import ChunkReader
    from broker.cluster.database_rows import LeasedRow
    from broker.cluster.shared_stream import SharedStreams

__all__ = ["Arrivals"]

_log = get_logger()

PAUSE_S: Final = 0.05


class Arrivals:
    """The rows of one lease.

    Invariant: ``rows`` are leased, and their streams do not have them.
    """

    def __init__(self, streams: SharedStreams, reader: ChunkReader) -> None:
        self._streams = streams
        self._reader = reader
        self._loader = ChunkLoader()
        self.rows: list[LeasedRow] = []

    def begin(self, rows: Sequence[LeasedRow]) -> None:
        """Take what a lease answered."""
        self.rows = [row for row in rows if row.number is not None]

    async def read(self, is_over: Callable[[], bool]) -> Mapping[int, Chunk | DamagedChunk]:
        """Return the chunks of the rows, read as often as it takes; stop when the lease is over."""
        while True:
            try:
                return await self._reader.read(self.rows)
            except Unreachable:
                if is_over():
                    return {}
                await asyncio.sleep(PAUSE_S)

    def adopt(self, chunks: Mapping[int, Chunk | DamagedChunk]) -> dict[int, int]:
        """Give the messages to their streams, and return how many each of them got."""
        rows, self.rows = self.rows, []
        counts: dict[int, int] = {}
        for row in rows:
            counts[row.stream] = counts.get(row.stream, 0) + self._adopt(row, chunks)
        return counts

    def _adopt(self, row: LeasedRow, chunks: Mapping[int, Chunk | DamagedChunk]) -> int:
        stream = self._streams.by_number.get(row.stream)
        if stream is None or row.number is None:
            return 0
        indexes = list(row.bits.search(1))
        try:
            messages = self._loader.load(chunks[row.number], row.stream, indexes, row.count)
        except DamagedChunk as error:
            _log.error(
                "chunk.damaged",
                queue=stream.queue.name,
                table=f"chunk_{row.ring}",
                number=row.number,
                messages=len(indexes),
                reason=str(error),
            )
            stream.keep_damaged(row.number, row.bits)
            return 0
        counts = {int(index): count for index, count in (row.counts or {}).items()}
        stream.adopt(SharedSlot(row.stream, row.number, row.count), indexes, messages, counts, row.seen)
        return len(indexes)

    def forget(self) -> None:
        """Forget the rows: others have them now."""
        self.rows = []
