"""The PostgreSQL of the tests: it keeps what was committed, and it never outlives the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.cluster.postgres import require_server
from tests.deadline import wait_until, wait_until_async
from tools.postgres_server import PostgresFailed, PostgresServer

PROJECT = Path(__file__).parents[2]


async def test_clients_connect_and_statements_are_counted(shared_postgres: PostgresServer, schema: str) -> None:
    """A client of asyncpg connects, and pg_stat_statements counts what it runs."""
    connection = await asyncpg.connect(shared_postgres.url)
    try:
        await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.execute(f"CREATE TABLE {schema}.row (n int)")
        counted = "SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE $1"
        assert await connection.fetchval(counted, f"CREATE TABLE {schema}%") == 1
    finally:
        await connection.close()


def test_what_was_committed_outlives_a_restart_and_a_kill(postgres: PostgresServer) -> None:
    """A stopped and a killed server both keep what was committed, at the same URL."""
    url = postgres.url
    postgres.sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
    postgres.restart().sql("INSERT INTO kept VALUES (2)")
    postgres.kill()
    assert postgres.start().sql("SELECT n FROM kept ORDER BY n") == "1\n2"
    assert postgres.url == url


async def test_a_killed_backend_ends_every_session(postgres: PostgresServer) -> None:
    """The server ends all sessions when one backend is killed, and recovers by itself."""
    mine, other = await asyncpg.connect(postgres.url), await asyncpg.connect(postgres.url)
    postgres.kill_backend(mine.get_server_pid())

    async def is_over() -> bool:
        try:
            await other.execute("SELECT 1")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return True
        return False

    await wait_until_async(is_over, "the other session ends too")
    for connection in (mine, other):
        connection.terminate()

    def answers() -> bool:
        try:
            return postgres.sql("SELECT 1") == "1"
        except PostgresFailed:  # it recovers
            return False

    wait_until(answers, "the server recovers by itself")


def test_a_server_that_cannot_start_says_why() -> None:
    """The error of a failed start has the server's own words, and the folder is removed."""
    require_server()
    with PostgresServer() as server:
        (server.folder / "data" / "postgresql.auto.conf").write_text("shared_preload_libraries = 'no_such_library'\n")
        with pytest.raises(PostgresFailed, match="no_such_library"):
            server.start()
    assert not server.folder.exists()


def test_the_server_ends_with_a_process_that_is_killed() -> None:
    """The server does not outlive a test run that is killed."""
    require_server()
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent ended")
    program = """
import os
from tools.postgres_server import PostgresServer
server = PostgresServer().start()
print(server.folder, server.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    folder, pid = done.stdout.split()
    wait_until(lambda: not _runs(int(pid)), "the server ends")
    subprocess.run(["rm", "-rf", folder], check=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
