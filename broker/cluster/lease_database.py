"""The database as leases see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from bitarray import bitarray

from broker.cluster.hint_teller import HintDatabase

if TYPE_CHECKING:
    from broker.cluster.database_rows import LeasedRow

__all__ = ["LeaseDatabase"]


class LeaseDatabase(HintDatabase, Protocol):
    """The database as leases see it. Each method raises Fenced and Unreachable."""

    async def lease(
        self, streams: Sequence[int], room: Sequence[int], after: Sequence[int], able: Sequence[int] = ()
    ) -> Sequence[LeasedRow]:
        """Lease up to `room` messages of each stream, from the number `after` on.

        `able` is for how many messages in all the consumers of this node have room, of streams with limits.
        """

    async def free_messages(self, streams: Sequence[int], rows_max: int) -> Mapping[int, int]:
        """Return how many free messages the first rows of streams have."""

    async def give_back(
        self,
        streams: Sequence[int],
        numbers: Sequence[int],
        bits: Sequence[bitarray],
        seen: Sequence[bitarray | None],
        counts: Sequence[dict[str, int] | None],
    ) -> None:
        """Return messages of slots."""
