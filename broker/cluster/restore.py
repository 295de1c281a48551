"""Restore a backup of a cluster: the schema gets the contents of the backup and begins a new history.

The nodes of the backup are no longer members: the messages leased to them are free and marked as redelivered. The
schema assigns no number twice, so a node that still relies on the former contents cannot pass for a member.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, BinaryIO, Final

import asyncpg

from broker.cluster.backup import CHUNKS, NOT_COPIED, copying, newest_numbers, tables_of
from broker.cluster.backup_file import DATA, END, HEAD, TABLE, BackupReader, BackupRefused
from broker.cluster.schema import FUNCTION_VERSION, SCHEMA_VERSION, SchemaRefused, install
from broker.cluster.server_address import ServerAddress, quoted

LEASE_MS: Final = 3000  # of a member that has not reported its lease
PATIENCE: Final = 4 / 3  # in leases: a member silent for this long is dead; the other nodes wait 7/6
LOOK_S: Final = 0.05
GAPS: Final = {"number_of_call": 1_000_000, "level_number": 1024 * 1024, "arrival_of_consumer": 1}
"""Added to the newest known number of each sequence, because nodes may have assigned higher ones."""
_FINISH: Final = """
DELETE FROM batch;
DELETE FROM definitions_follower;
UPDATE queue_use SET used_ms = now_ms();
"""

Beats = dict[str, tuple[int, int]]  # epoch and heartbeats by node
Progress = Callable[[int], None]


async def restore(target: ServerAddress, stream: BinaryIO, progress: Progress) -> dict[str, int]:
    """Replace the contents of the schema with those of a backup, completely or not at all; return the counts of tables
    and rows.
    Shapes: `progress` is called with the number of bytes read.
    Raises: BackupRefused, also while a node is alive; Unreachable; DatabaseRefused; OSError of the stream.
    """
    reader = BackupReader(stream)
    head = reader.fields(HEAD)
    if (head["schema_version"], head["function_version"]) != (SCHEMA_VERSION, FUNCTION_VERSION):
        raise BackupRefused(f"the backup was made by slotmq {head['broker']}, and is of another version of the schema")
    async with copying(target) as connection:
        beats = await _wait_for_death(connection, target.schema)
        try:
            await install(connection, target.schema)
        except SchemaRefused as error:
            raise BackupRefused(str(error)) from error
        async with connection.transaction():
            names = [table.name for table in await tables_of(connection, target.schema)]
            await connection.execute(f"LOCK TABLE {quoted(*names)} IN ACCESS EXCLUSIVE MODE")
            if await _beats(connection) != beats:
                raise BackupRefused("a node joined meanwhile: stop all nodes first")
            rings = await _make_chunk_tables(connection, head["tables"])
            numbers = [await newest_numbers(connection), head["sequences"]]
            counts = await _load(connection, target.schema, reader, progress)
            await _begin_history(connection, head, rings, numbers)
        return counts


# -- the nodes --------------------------------------------------------------------------------------------------------


async def _wait_for_death(connection: asyncpg.Connection, schema: str) -> Beats:
    """Wait until the leases of all members have ended, and return their heartbeats. Raises: BackupRefused."""
    if not any(table.name == "beat" for table in await tables_of(connection, schema)):
        return {}
    first = await _beats(connection)
    leases = await connection.fetch("SELECT coalesce((reports->>'lease_ms')::int, $1) FROM beat", LEASE_MS)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PATIENCE * max((row[0] for row in leases), default=0) / 1000
    while True:
        now = await _beats(connection)
        living = sorted(node for node, beats in now.items() if first.get(node) != beats)
        if living:
            raise BackupRefused(f"node '{living[0]}' lives: stop all nodes first, restore, then start them")
        if loop.time() >= until_s:
            return now
        await asyncio.sleep(LOOK_S)


async def _beats(connection: asyncpg.Connection) -> Beats:
    rows = await connection.fetch(
        "SELECT m.node, m.epoch, coalesce(b.beats, 0) FROM member m LEFT JOIN beat b USING (node)"
    )
    return {row[0]: (row[1], row[2]) for row in rows}


# -- the tables -------------------------------------------------------------------------------------------------------


async def _make_chunk_tables(connection: asyncpg.Connection, names: Sequence[str]) -> list[int]:
    """Create the chunk tables of the backup that are missing, and return the numbers of all chunk tables."""
    wanted = {int(name.removeprefix(CHUNKS)) for name in names if name.startswith(CHUNKS)}
    while True:
        rings = [row[0] for row in await connection.fetch("SELECT ring FROM ring ORDER BY ring")]
        if wanted <= set(rings):
            return rings
        await connection.execute("SELECT add_ring_table()")


async def _load(
    connection: asyncpg.Connection, schema: str, reader: BackupReader, progress: Progress
) -> dict[str, int]:
    """Replace the rows of all tables, and return the counts of tables and rows. Raises: BackupRefused."""
    known = [table.name for table in await tables_of(connection, schema) if table.name != NOT_COPIED]
    await connection.execute(f"TRUNCATE {quoted(*known)}")
    kind, content = reader.next()
    count = 0
    while kind == TABLE:
        table: dict[str, Any] = json.loads(content)
        if table["name"] not in known:
            raise BackupRefused(f"this broker has no table {table['name']}")
        following: list[tuple[bytes, bytes]] = []
        copied = await connection.copy_to_table(
            table["name"],
            source=_rows(reader, following, progress),
            schema_name=schema,
            columns=table["columns"],
            format="binary",
        )
        count += int(copied.split()[-1])
        ((kind, content),) = following
    end: dict[str, Any] = json.loads(content) if kind == END else {}
    if end.get("rows") != count:
        raise BackupRefused(f"the backup is damaged: it has {count:,} rows, which differs from the count at its end")
    return {"tables": end["tables"], "rows": count}


async def _rows(reader: BackupReader, following: list[tuple[bytes, bytes]], progress: Progress) -> AsyncIterator[bytes]:
    """Yield the rows of a table, and add the block that follows them to `following`."""
    while True:
        kind, content = reader.next()
        progress(reader.position)
        if kind != DATA:
            following.append((kind, content))
            return
        yield content


# -- the new history --------------------------------------------------------------------------------------------------


async def _begin_history(
    connection: asyncpg.Connection, head: dict[str, Any], rings: Sequence[int], numbers: Sequence[dict[str, int]]
) -> None:
    """Remove all members, and leave a gap in the numbers.

    Shapes: `rings` are the existing chunk tables; `numbers` are the newest numbers of the schema and of the backup.
    """
    await connection.execute(
        "INSERT INTO ring (ring, used) SELECT r.ring, false FROM unnest($1::int[]) r(ring) ON CONFLICT DO NOTHING",
        rings,
    )
    for name, gap in GAPS.items():
        newest = max(known[name] for known in numbers)
        await connection.execute("SELECT setval($1::text::regclass, $2)", name, newest + gap)
    await connection.execute(
        "UPDATE cluster SET ring = $1, generation = greatest(generation, $2) + 1, history = DEFAULT",
        head["ring"],
        head["generation"],
    )
    for node, epoch in await connection.fetch("SELECT node, epoch FROM member ORDER BY node"):
        await connection.execute("SELECT leave($1, $2)", node, epoch)
    await connection.execute(_FINISH)
