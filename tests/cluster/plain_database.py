"""A member of a cluster for tests of single parts: functions of the schema over one plain connection."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from broker.cluster.errors import Fenced
from broker.cluster.schema import SESSION_SETTINGS, install


class PlainDatabase:
    """One node's connection, one statement at a time, without reconnecting."""

    def __init__(self, connection: Any, node: str) -> None:
        self.node = node
        self.epoch = 0
        self._connection = connection
        self._lock = asyncio.Lock()

    @classmethod
    async def joined(cls, url: str, schema: str, node: str) -> PlainDatabase:
        """Connect, create the schema, and join."""
        connection = await asyncpg.connect(url, server_settings=SESSION_SETTINGS)
        await install(connection, schema)
        database = cls(connection, node)
        await database.join()
        return database

    async def join(self) -> None:
        """Join as a new epoch."""
        (row,) = await self.function("beat", "join", self.node, "amqp://", 1)
        self.epoch = row["epoch"]

    async def leave(self) -> None:
        """Leave the cluster."""
        await self.acting("beat", "leave")
        self.epoch = 0

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        """Run a statement and return its rows."""
        async with self._lock:
            try:
                rows: list[Any] = await self._connection.fetch(statement, *arguments)
            except asyncpg.PostgresError as error:
                if error.sqlstate == "SQ001":
                    raise Fenced(str(error)) from error
                raise
            return rows

    async def function(self, _lane: str, name: str, *arguments: Any) -> list[Any]:
        """Call a function and return its rows."""
        places = ", ".join(f"${place}" for place in range(1, len(arguments) + 1))
        return await self.fetch(f"SELECT * FROM {name}({places})", *arguments)

    async def acting(self, lane: str, name: str, *arguments: Any) -> list[Any]:
        """Call a function that takes this node and its epoch first."""
        if not self.epoch:
            raise Fenced("this node has not joined")
        return await self.function(lane, name, self.node, self.epoch, *arguments)
