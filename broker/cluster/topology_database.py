"""The topology log in PostgreSQL: one method per function of sql/topology.sql."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.cluster.database import Database
from broker.cluster.database_rows import as_text

__all__ = ["STREAM_NUMBERS", "Limits", "TopologyDatabase", "Version"]

STREAM_NUMBERS: Final = 1024  # in one range, as sql/topology.sql has it
CALLS_S: Final = 0.005  # between looks whether the calls of a moment have ended


class Version(NamedTuple):
    """One version of the topology.

    Shapes: `bodies` has its changes; those of a snapshot are all changes up to this version, compressed. `epochs` has
        the members that have to apply the version, in the last row that an append returns.
    """

    version: int
    bodies: Sequence[bytes]
    snapshot: bytes | None = None
    epochs: Sequence[int] | None = None


Limits = dict[str, Any]  # the arguments of set_stream by name


class TopologyDatabase:
    """Appends, reads and reports versions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._database.node

    @property
    def epoch(self) -> int:
        """The epoch of this node; 0 if it is no member."""
        return self._database.epoch

    async def append(
        self,
        sequence: int,
        known: int,
        bodies: Sequence[bytes],
        unused: Sequence[int | None],
        dropped: Sequence[int],
        limits: Sequence[Limits],
    ) -> list[Version]:
        """Append changes and return every version after the known one, this one last.

        A change is left out while the stream in its place of `unused` has consumers.
        """
        rows = await self._database.acting(
            "upkeep", "append", sequence, known, bodies, unused, dropped, _rows(limits) or None
        )
        return [Version(row["version"], row["bodies"], epochs=row["epochs"]) for row in rows]

    async def changes_since(self, known: int) -> list[Version]:
        """Return the versions after a known one."""
        rows = await self._database.function("listen", "changes_since", known)
        return [Version(row["version"], row["bodies"] or (), row["snapshot"]) for row in rows]

    async def report(self, applied: int) -> None:
        """Tell all nodes that this one has applied a version."""
        await self._database.acting("listen", "report", applied)

    async def applied(self) -> dict[int, int]:
        """Return what each member has applied, by its epoch."""
        return {row["epoch"]: row["applied"] for row in await self._database.function("listen", "applied")}

    async def stream_numbers(self) -> range:
        """Return stream numbers that no queue has had or will have elsewhere."""
        rows = await self._database.function("listen", "nextval", "stream_number")
        first: int = rows[0][0]
        return range(first, first + STREAM_NUMBERS)

    async def drop_streams(self, version: int, streams: Sequence[int]) -> None:
        """Sweep the rows of deleted queues once every member has applied that version."""
        await self._database.acting("upkeep", "drop_streams", version, streams)

    async def sweep_dropped(self) -> bool:
        """Remove a slice of the rows of deleted queues, and return whether there may be more."""
        return bool((await self._database.acting("upkeep", "sweep_dropped"))[0][0])

    async def replace_limits(self, vhost: str, limits: Sequence[Limits]) -> None:
        """Replace the limits of all queues of a vhost, and count their messages afresh.

        A call that began before does not count what it brings, so they are counted again when all of those have ended.
        """
        await self._database.acting("upkeep", "replace_limits", as_text(vhost), _rows(limits))
        if not limits:
            return
        newest = (await self._database.function("upkeep", "newest_call"))[0][0]
        while (await self._database.function("upkeep", "oldest_call"))[0][0] <= newest:  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(CALLS_S)
        await self._database.acting("upkeep", "recount", [row["stream"] for row in limits])

    async def put_snapshot(self, version: int, body: bytes) -> None:
        """Keep a snapshot, and remove the changes that it stands for."""
        await self._database.acting("upkeep", "put_snapshot", version, body)


def _rows(limits: Sequence[Limits]) -> list[Limits]:
    """Return limits as PostgreSQL takes them."""
    return [{**row, "vhost": as_text(row["vhost"])} for row in limits]
