"""The database as leases see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from bitarray import bitarray

from broker.cluster.hint_teller import HintDatabase

if TYPE_CHECKING:
    from broker.cluster.database_rows import LeasedRow

__all__ = ["LeaseDatabase"]


class LeaseDatabase(HintDatabase, Protocol):
    """The database as leases see it. Each method raises Fenced and Unreachable."""

    async def lease(self, streams: Sequence[int], room: Sequence[int], after: Sequence[int]) -> Sequence[LeasedRow]:
        """Lease up to `room` messages of each stream, from the number `after` on."""

    async def give_back(
        self,
        streams: Sequence[int],
        numbers: Sequence[int],
        bits: Sequence[bitarray],
        seen: Sequence[bitarray | None],
        counts: Sequence[dict[str, int] | None],
    ) -> None:
        """Return messages of slots."""
