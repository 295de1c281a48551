"""A backup of a cluster: one snapshot of its schema in PostgreSQL, while the nodes run. Locks keep the nodes from
emptying chunk tables in the meantime, because TRUNCATE empties a table for older snapshots, too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, Final, NamedTuple

import asyncpg

from broker import __version__
from broker.cluster.backup_file import END, HEAD, TABLE, BackupRefused, BackupWriter
from broker.cluster.connections import first_open
from broker.cluster.errors import DatabaseRefused, Unreachable, refusal_of
from broker.cluster.server_address import ServerAddress, quoted

NOT_COPIED: Final = "cluster"
"""The table with the version of the schema; the columns that a restore needs are in the head of the file."""
SEQUENCES: Final = ("number_of_call", "level_number", "arrival_of_consumer")
CHUNKS: Final = "chunk_"
ATTEMPTS: Final = 10  # a chunk table may be added between listing and locking the tables, once per 256 MiB

SETTINGS: Final = {  # they override what an administrator may have set for other work
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "warning",
}
_TABLES: Final = """
SELECT c.relname AS name, pg_table_size(c.oid) AS bytes, array_agg(a.attname::text ORDER BY a.attnum) AS columns
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
WHERE n.nspname = $1 AND c.relkind = 'r' GROUP BY c.oid, c.relname ORDER BY c.relname
"""

Progress = Callable[[int, int], None]


class CopiedTable(NamedTuple):
    """A table of the schema. Units: `size_bytes` is its size on disk."""

    name: str
    size_bytes: int
    columns: list[str]


async def back_up(target: ServerAddress, stream: BinaryIO, progress: Progress) -> dict[str, int]:
    """Write the tables of the schema to a stream, and return the numbers of tables, rows and bytes written.

    Shapes: `progress` is called with the bytes written so far and the approximate total.
    Raises: BackupRefused; Unreachable; DatabaseRefused; OSError of the stream.
    """
    async with copying(target) as connection, _snapshot(connection, target.schema) as tables:
        total_bytes = sum(table.size_bytes for table in tables)
        writer = BackupWriter(stream)
        writer.write(HEAD, {**await _head(connection), "tables": [table.name for table in tables]})
        count = 0
        for table in tables:
            if table.name == NOT_COPIED:
                continue
            writer.write(TABLE, {"name": table.name, "columns": table.columns})

            async def add(rows: bytes) -> None:
                await writer.add(rows)
                progress(min(writer.written, total_bytes), total_bytes)

            copied = await connection.copy_from_query(_query_of(table), output=add, format="binary")
            count += int(copied.split()[-1])
        writer.write(END, {"tables": len(tables) - 1, "rows": count})
        return {"tables": len(tables) - 1, "rows": count, "bytes": writer.written}


@asynccontextmanager
async def _snapshot(connection: asyncpg.Connection, schema: str) -> AsyncIterator[list[CopiedTable]]:
    """Yield the tables within one snapshot, which begins once all of them are locked."""
    for _ in range(ATTEMPTS):
        known = [table.name for table in await tables_of(connection, schema)]
        if NOT_COPIED not in known:
            raise BackupRefused(f"there is no cluster in the schema {schema}")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(f"LOCK TABLE {quoted(*known)} IN ACCESS SHARE MODE")
            tables = await tables_of(connection, schema)  # the snapshot begins
            if [table.name for table in tables] == known:
                yield tables
                return
    raise BackupRefused("tables were added to the cluster during each attempt: try again")


async def _head(connection: asyncpg.Connection) -> dict[str, object]:
    row = await connection.fetchrow("SELECT schema_version, function_version, generation, ring FROM cluster")
    made_ms = int(time.time() * 1000)
    return {"broker": __version__, "made_ms": made_ms, **row, "sequences": await newest_numbers(connection)}


async def newest_numbers(connection: asyncpg.Connection) -> dict[str, int]:
    """Return the newest number of each sequence."""
    return {name: await connection.fetchval(f"SELECT last_value FROM {name}") for name in SEQUENCES}  # noqa: S608 names of our own


def _query_of(table: CopiedTable) -> str:
    """Return the query for the rows of a table; for chunk tables only the chunks that a slot refers to."""
    query = f"SELECT {quoted(*table.columns)} FROM {quoted(table.name)}"  # noqa: S608 names of our own
    if table.name.startswith(CHUNKS):
        ring = int(table.name.removeprefix(CHUNKS))
        query += f" WHERE number IN (SELECT s.number FROM slot s WHERE s.ring = {ring:d})"  # noqa: S608
    return query


async def tables_of(connection: asyncpg.Connection, schema: str) -> list[CopiedTable]:
    """Return the tables of a schema, in the order of their names; none if the schema does not exist."""
    return [CopiedTable(*row) for row in await connection.fetch(_TABLES, schema)]


@asynccontextmanager
async def copying(target: ServerAddress) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection to the first server of the URL that accepts writes.

    Raises: Unreachable, also when the connection breaks; DatabaseRefused, also for any other error of a statement.
    """
    connection = await first_open(target, _open)
    try:
        await connection.execute("SELECT set_config('search_path', $1, false)", target.quoted_schema)
        for name, value in SETTINGS.items():
            await connection.execute("SELECT set_config($1, $2, false)", name, value)
        yield connection
    except (
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        ConnectionError,
    ) as error:
        raise Unreachable(f"{target.shown}: {target.reason(error)}") from error
    except asyncpg.PostgresError as error:
        raise DatabaseRefused(f"{target.shown}: {target.reason(error)}") from error
    finally:
        connection.terminate()


async def _open(server: ServerAddress) -> asyncpg.Connection:
    try:
        opened: Any = await asyncpg.connect(
            server.url, timeout=server.connect_timeout_s, target_session_attrs="read-write"
        )
    except Exception as error:
        refusal = refusal_of(server, error)
        if refusal is None:
            raise
        raise refusal from error
    return opened
