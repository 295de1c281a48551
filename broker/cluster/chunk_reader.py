"""The chunk reader: read chunks by number, from memory or from the database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from broker.cluster.chunk import Chunk, DamagedChunk
from broker.cluster.database import Database
from broker.cluster.database_rows import LeasedRow
from broker.cluster.errors import StatementRefused

CACHE_BYTES: Final = 32 << 20

WantedChunk = tuple[int, int, int]  # level, number, ring


class ChunkReader:
    """Read chunks, and cache the most recently used ones. Units: ``reads`` counts the reads of a table."""

    def __init__(self, database: Database, cache_bytes: int = CACHE_BYTES) -> None:
        self._database = database
        self._cache_bytes = cache_bytes
        self._chunks: dict[int, Sequence[bytes] | Chunk] = {}  # the most recently used one is last
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self.reads = 0

    def cache(self, number: int, parts: Sequence[bytes]) -> None:
        """Cache a chunk that this node wrote, because its own consumers may lease its messages next."""
        self._put(number, parts, sum([len(part) for part in parts]))

    def clear(self) -> None:
        self._chunks.clear()
        self._sizes.clear()
        self._size_bytes = 0

    async def read(self, rows: Sequence[LeasedRow]) -> dict[int, Chunk | DamagedChunk]:
        """Return the chunks of rows by number, with an error in place of a missing or damaged one. Raises: Unreachable.

        One statement per table reads the chunks that are not in memory. A chunk that is not in its table may have been
        moved to another one, and is looked up once more.
        """
        found: dict[int, Chunk | DamagedChunk] = {}
        missing: list[WantedChunk] = []
        for row in rows:
            number = row.number
            if number is None or number in found:
                continue
            chunk = self._cached(number)
            if chunk is None:
                missing.append((row.level, number, row.ring))
            else:
                found[number] = chunk
        if missing:
            missing = await self._fetch(missing, found)
        if missing:
            with suppress(StatementRefused):
                moved = await self._database.locate([one[0] for one in missing], [one[1] for one in missing])
                await self._fetch(moved, found)
            for _level, number, ring in missing:
                found.setdefault(number, DamagedChunk(f"it is not in table chunk_{ring}, nor where it may have moved"))
        return found

    async def _fetch(self, wanted: Sequence[WantedChunk], found: dict[int, Chunk | DamagedChunk]) -> list[WantedChunk]:
        """Read chunks into `found`, and return those that are not in the expected table."""
        by_ring: dict[int, dict[int, None]] = {}
        for _level, number, ring in wanted:
            by_ring.setdefault(ring, {})[number] = None
        for ring, numbers in by_ring.items():
            self.reads += 1
            parts: dict[int, list[bytes]] = {}
            for number, part in await self._parts(ring, list(numbers), found):
                parts.setdefault(number, []).append(part)
            for number, pieces in parts.items():
                found[number] = self._decode(number, pieces)
        return [one for one in wanted if one[1] not in found]

    async def _parts(
        self, ring: int, numbers: list[int], found: dict[int, Chunk | DamagedChunk]
    ) -> Sequence[tuple[int, bytes]]:
        """Return the numbers and parts of chunks; add those that PostgreSQL cannot read to `found`, as damaged."""
        try:
            return await self._database.chunks(ring, numbers)
        except StatementRefused as error:
            if len(numbers) == 1:
                found[numbers[0]] = DamagedChunk(str(error))
                return ()
        return [part for number in numbers for part in await self._parts(ring, [number], found)]

    def _cached(self, number: int) -> Chunk | DamagedChunk | None:
        cached = self._chunks.get(number)
        if cached is None:
            return None
        if not isinstance(cached, Chunk):
            return self._decode(number, cached)
        self._chunks[number] = self._chunks.pop(number)
        return cached

    def _decode(self, number: int, parts: Sequence[bytes]) -> Chunk | DamagedChunk:
        try:
            chunk = Chunk(parts[0] if len(parts) == 1 else b"".join(parts))
            chunk.check()
        except DamagedChunk as error:
            return error
        self._put(number, chunk, len(chunk.data))
        return chunk

    def _put(self, number: int, chunk: Sequence[bytes] | Chunk, size_bytes: int) -> None:
        self._size_bytes += size_bytes - self._sizes.pop(number, 0)
        self._chunks.pop(number, None)
        self._chunks[number] = chunk
        self._sizes[number] = size_bytes
        while self._size_bytes > self._cache_bytes:
            oldest = next(iter(self._chunks))
            del self._chunks[oldest]
            self._size_bytes -= self._sizes.pop(oldest)
