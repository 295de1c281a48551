"""A connection of a node to the shared store, for tests of the functions in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import asyncpg

from broker.cluster.schema import SESSION_SETTINGS, install

COMMIT = "SELECT * FROM commit($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"


def ones(count: int) -> str:
    """Return bits that are all set."""
    return "1" * count


def bits(text: str | None) -> asyncpg.BitString | None:
    """Return a text of 0 and 1 as bits of the driver."""
    return None if text is None else asyncpg.BitString(text)


@dataclass
class Share:
    """The messages that one call publishes to one level."""

    level: int
    free: str = ""
    mine: str = ""
    due_at: int | None = None
    sizes: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """The number of messages in the share."""
        return max(len(self.free), len(self.mine))


class Session:
    """One connection; sessions of one node share its epoch by `join` and `as_node`."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.node = ""
        self.epoch = 0
        self.sequence = 0

    @classmethod
    async def open(cls, url: str, schema: str) -> Self:
        """Connect, and create the schema if it is missing."""
        connection = await asyncpg.connect(url, server_settings={**SESSION_SETTINGS, "search_path": schema})
        await install(connection, schema)
        return cls(connection)

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close(timeout=5)

    def as_node(self, other: Session) -> Self:
        """Act as the node of another session, and return this session."""
        self.node, self.epoch = other.node, other.epoch
        return self

    async def rows(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        """Return rows, with bits as text."""
        found = await self.connection.fetch(query, *arguments)
        return [
            {
                key: value.as_string().replace(" ", "") if isinstance(value, asyncpg.BitString) else value
                for key, value in row.items()
            }
            for row in found
        ]

    async def value(self, query: str, *arguments: Any) -> Any:
        """Return the first column of the first row."""
        return await self.connection.fetchval(query, *arguments)

    async def join(self, node: str) -> Self:
        """Join as a node."""
        self.node = node
        self.epoch = (await self.rows("SELECT * FROM join($1, 'amqp://here', 1)", node))[0]["epoch"]
        return self

    async def members_named(self) -> list[str]:
        """Return the names of the members."""
        return [row["node"] for row in await self.rows("SELECT node FROM member ORDER BY node")]

    async def beat(self) -> list[dict[str, Any]]:
        """Send a heartbeat, and return the rows of the members."""
        return await self.rows("SELECT * FROM beat($1, $2, 'amqp://here', 0, '{}')", self.node, self.epoch)

    async def count_out(self, dead: Session, beats: int = 0) -> bool:
        """Declare another node dead; return whether it was."""
        return bool(
            await self.value(
                "SELECT count_out($1, $2, $3, $4, $5)", self.node, self.epoch, dead.node, dead.epoch, beats
            )
        )

    async def commit(
        self,
        *shares: Share,
        settle: Sequence[tuple[int, int, str]] = (),
        used: Sequence[tuple[str, int, int]] = (),
        sequence: int | None = None,
        synchronous: bool = True,
        atomic: bool = False,
        record_bytes: int = 8,
    ) -> dict[str, Any]:
        """Commit a call with shares and settlements (level, number, bits); its chunk names the node and sequence.

        `refused` in the result has the bits of each share that full queues refused, by its position from 1.
        """
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        part = f"{self.node} {self.epoch} {sequence} ".encode().ljust(record_bytes, b".")
        settle = sorted(settle)
        found = await self.rows(
            COMMIT,
            self.node,
            self.epoch,
            sequence,
            synchronous,
            atomic,
            [part] if shares else [],
            [share.level for share in shares],
            [share.count for share in shares],
            [sum(share.sizes or [10] * share.count) for share in shares],
            [bits(share.mine) for share in shares],
            [bits(share.free) for share in shares],
            [share.due_at for share in shares],
            [
                None if share.sizes is None else b"".join(size.to_bytes(4, "big") for size in share.sizes)
                for share in shares
            ],
            [level for level, _, _ in settle],
            [number for _, number, _ in settle],
            [bits(text) for _, _, text in settle],
            [name for name, _, _ in used],
            [first for _, first, _ in used],
            [last for _, _, last in used],
        )
        found[0]["refused"] = {place: one for place, one, _ in json.loads(found[0]["refused"] or "[]")}
        return found[0]

    async def lease(
        self, *asked: tuple[int, int], after: int = 0, able: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Lease up to this many messages (level, room); return the rows with a number."""
        found = await self.rows(
            "SELECT * FROM lease($1, $2, $3, $4, $5, false, $6)",
            self.node,
            self.epoch,
            [level for level, _ in asked],
            [room for _, room in asked],
            [after] * len(asked),
            able,
        )
        return [row for row in found if row["number"] is not None]

    async def give_back(
        self,
        *rows: tuple[int, int, str],
        seen: str | None = None,
        counts: dict[int, int] | None = None,
        due_at: int | None = None,
    ) -> None:
        """Return messages (level, number, bits)."""
        await self.value(
            "SELECT give_back($1, $2, $3, $4, $5, $6, $7, $8)",
            self.node,
            self.epoch,
            [level for level, _, _ in rows],
            [number for _, number, _ in rows],
            [bits(text) for _, _, text in rows],
            [bits(seen)] * len(rows),
            [None if counts is None else json.dumps(counts)] * len(rows),
            [due_at] * len(rows),
        )

    async def held(self) -> list[dict[str, Any]]:
        """Return the node's own rows."""
        return await self.rows("SELECT * FROM held($1, $2)", self.node, self.epoch)

    async def free(self, level: int) -> list[dict[str, Any]]:
        """Return the free rows of a level."""
        return await self.rows("SELECT * FROM slot WHERE level = $1 AND holder = '' ORDER BY number", level)

    async def in_flight(self) -> asyncpg.transaction.Transaction:
        """Begin a transaction, so that the session's next call stays in flight until its end."""
        transaction = self.connection.transaction()
        await transaction.start()
        return transaction

    async def sees_blocked(self, holder: Session, waiting: Session) -> bool:
        """Return whether a session waits for a lock of another one; asked by a third session."""
        blocking = await self.value("SELECT pg_blocking_pids($1)", waiting.connection.get_server_pid())
        return holder.connection.get_server_pid() in blocking


Sessions = Callable[[str], Awaitable[Session]]
"""Opens a session of a node, which joins at first."""
