"""A connection to PostgreSQL for one command: it backs up the schema of a cluster, or restores it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import asyncpg

from broker.cluster.connection_refusal import refusal_of
from broker.cluster.errors import ClusterError, DatabaseRefused, Unreachable
from broker.cluster.server_address import ServerAddress

__all__ = ["CopiedTable", "copying", "quoted", "tables_of"]

SETTINGS: Final = {  # what an administrator may have set for other work
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


class CopiedTable(NamedTuple):
    """A table of the schema. Units: `size_bytes` is what it takes on disk."""

    name: str
    size_bytes: int
    columns: list[str]


def quoted(*names: str) -> str:
    """Return names as SQL has them."""
    return ", ".join(['"' + name.replace('"', '""') + '"' for name in names])


async def tables_of(connection: asyncpg.Connection, schema: str) -> list[CopiedTable]:
    """Return the tables of a schema, in the order of their names; none where it does not exist."""
    return [CopiedTable(*row) for row in await connection.fetch(_TABLES, schema)]


@asynccontextmanager
async def copying(target: ServerAddress) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection to the first server of the URL that takes writes.

    Raises: Unreachable, also when the connection breaks; DatabaseRefused.
    """
    connection = await _open(target)
    try:
        await connection.execute("SELECT set_config('search_path', $1, false)", target.quoted_schema)
        for name, value in SETTINGS.items():
            await connection.execute("SELECT set_config($1, $2, false)", name, value)
        yield connection
    except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise Unreachable(f"{target.shown}: {target.reason(error)}") from error
    except asyncpg.PostgresError as error:
        raise DatabaseRefused(f"{target.shown}: {target.reason(error)}") from error
    finally:
        connection.terminate()


async def _open(target: ServerAddress) -> asyncpg.Connection:
    failures: list[ClusterError] = []
    for server in target.servers:
        try:
            opened: Any = await asyncpg.connect(
                server.url, timeout=server.connect_timeout_s, target_session_attrs="read-write"
            )
        except Exception as error:
            refusal = refusal_of(server, error)
            if refusal is None:
                raise
            failures.append(refusal)
        else:
            return opened
    kind = DatabaseRefused if any(isinstance(error, DatabaseRefused) for error in failures) else Unreachable
    raise kind("; ".join(map(str, failures)))
