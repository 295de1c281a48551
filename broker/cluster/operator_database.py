"""The messages of one stream in PostgreSQL, as an operator sees them: one method per function of sql/operator.sql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.cluster.database_rows import LeasedRow
from broker.cluster.packed_bits import pack_rows

if TYPE_CHECKING:
    from bitarray import bitarray

    from broker.cluster.database import Database

__all__ = ["OperatorDatabase"]


class OperatorDatabase:
    """Looks at free messages, and leases some of them. Each method raises Unreachable; those that act Fenced too."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def epoch(self) -> int:
        """The epoch as which this node acts, 0 while it does not."""
        return self._database.epoch

    async def newest_number(self) -> int:
        """Return the newest number: what was committed before has no higher one."""
        rows = await self._database.function("read", "newest_number")
        return int(rows[0][0])

    async def look(
        self, stream: int, number: int, index: int, last: int, *, messages_max: int, bytes_max: int
    ) -> list[LeasedRow]:
        """Return free messages in order, from an index of a slot on, up to the slot `last`. Nothing is leased."""
        rows = await self._database.function("read", "look", stream, number, index, last, messages_max, bytes_max)
        return [LeasedRow(*row.values()) for row in rows]

    async def hold(self, stream: int, wanted: Sequence[tuple[int, bitarray]]) -> dict[int, bitarray]:
        """Lease certain messages, and return those that still were free, by the number of their slot."""
        numbers, bits = [number for number, _ in wanted], pack_rows([bits for _, bits in wanted])
        return dict(await self._database.acting("lease", "hold", stream, numbers, bits))
