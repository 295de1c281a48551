"""The schema in PostgreSQL: install its tables and functions, and check their versions."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

import asyncpg

from broker.cluster.server_address import quoted

SCHEMA_VERSION: Final = 1
FUNCTION_VERSION: Final = 1

SESSION_SETTINGS: Final = {
    "jit": "off",
    "enable_seqscan": "off",  # every look-up has an index, and statistics may be outdated
    "enable_bitmapscan": "off",  # an index scan stops at the limit of a lease
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""The settings for the planner on every connection of a node."""

_FIRST: Final = ("tables.sql", "bits.sql", "limits.sql")
# If the arguments of a function have changed, CREATE OR REPLACE would create a second function with its name.
_DROP_FUNCTIONS: Final = """
DO $$ DECLARE v_function regprocedure; BEGIN
    FOR v_function IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.prokind = 'f' LOOP
        EXECUTE format('DROP FUNCTION %s', v_function);
    END LOOP;
END $$
"""


class SchemaRefused(Exception):
    """The schema was made by a newer broker, or it does not exist and the user of the URL may not create it."""


def _sources() -> list[str]:
    folder = files("broker.cluster") / "sql"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    ordered = [*_FIRST, *(name for name in names if name not in _FIRST)]
    return [(folder / name).read_text("utf-8") for name in ordered]


async def install(connection: asyncpg.Connection, schema: str) -> int:
    """Create the schema, its tables and functions, or upgrade them unless a node is a member. Return the version of the
    functions. Several nodes may call this at the same time. Also set the connection's `search_path`.
    Raises: SchemaRefused.
    """
    sources = _sources()
    digest = hashlib.sha256("\0".join(sources).encode()).hexdigest()
    name = quoted(schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1 || '.install', 0))", schema)
        await connection.execute("SELECT set_config('search_path', $1, false)", name)
        if await connection.fetchval("SELECT to_regclass($1 || '.cluster') IS NOT NULL", name):
            row = await connection.fetchrow("SELECT schema_version, function_version, digest FROM cluster")
            if (row["schema_version"], row["function_version"]) > (SCHEMA_VERSION, FUNCTION_VERSION):
                raise SchemaRefused(
                    f"the schema {schema} has version {row['schema_version']}, this broker {SCHEMA_VERSION}"
                )
            if row["digest"] == digest or await connection.fetchval("SELECT EXISTS (SELECT FROM member)"):
                return int(row["function_version"])
        await _make_schema(connection, schema, name)
        await connection.execute(_DROP_FUNCTIONS)
        for source in sources:
            await connection.execute(source)
        await connection.execute("SELECT finish_install($1, $2, $3)", SCHEMA_VERSION, FUNCTION_VERSION, digest)
    return FUNCTION_VERSION


async def _make_schema(connection: asyncpg.Connection, schema: str, name: str) -> None:
    """Create the schema if it is missing. (IF NOT EXISTS would need the right to create schemas even if it exists.)"""
    exists, may_create, user = await connection.fetchrow(
        """SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
               has_database_privilege(current_database(), 'CREATE'), quote_ident(current_user)""",
        schema,
    )
    if exists:
        return
    if not may_create:
        raise SchemaRefused(
            f"{user} may not create schemas: let an administrator run CREATE SCHEMA {name} AUTHORIZATION {user}"
        )
    await connection.execute(f"CREATE SCHEMA {name}")
