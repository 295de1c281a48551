"""The proxy in front of PostgreSQL: it passes everything on, and a call that falls into a trap has the effect told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.cluster.proxy import Point, Proxy, Then
from tests.deadline import DEADLINE_S, wait_until
from tools.postgres_server import PostgresServer

INSERT = "INSERT INTO {}.row VALUES ($1)"
LOST = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)


@pytest.fixture
def proxy(shared_postgres: PostgresServer) -> Iterator[Proxy]:
    """Provide a proxy in front of the shared server."""
    with Proxy(shared_postgres.url) as proxy:
        yield proxy


@pytest.fixture
def table(shared_postgres: PostgresServer, schema: str) -> str:
    """Provide an empty table, as the name of its schema."""
    shared_postgres.sql(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.row (n bytea)")
    return schema


def count(server: PostgresServer, table: str) -> int:
    """Return the number of rows."""
    return int(server.sql(f"SELECT count(*) FROM {table}.row"))


async def test_calls_pass_through(shared_postgres: PostgresServer, proxy: Proxy, table: str) -> None:
    """Prepared and simple statements, large values, errors and notifications."""
    connection = await asyncpg.connect(proxy.url)
    heard: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener("news", lambda *got: heard.put_nowait(got[3]))
    for size in (0, 10, 3_000_000):
        await connection.execute(INSERT.format(table), bytes(size))
    assert [len(row["n"]) for row in await connection.fetch(f"SELECT n FROM {table}.row")] == [0, 10, 3_000_000]
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.fetchval("SELECT 1 / $1::int", 0)
    shared_postgres.sql("NOTIFY news, 'hello'")
    assert await asyncio.wait_for(heard.get(), 10) == "hello"
    await connection.close()


@pytest.mark.parametrize("point", Point)
async def test_a_cut_call(shared_postgres: PostgresServer, proxy: Proxy, table: str, point: Point) -> None:
    """The client learns nothing; the row is there after DONE, and is not there after ASKED."""
    connection = await asyncpg.connect(proxy.url)
    insert = await connection.prepare(INSERT.format(table))
    seen: list[int] = []
    trap = proxy.trap(rf"insert into {table}", point, action=lambda: seen.append(count(shared_postgres, table)))
    with pytest.raises(LOST):
        await insert.fetch(b"1")
    assert trap.sprung.is_set()
    if point is not Point.SENT:
        assert seen == [count(shared_postgres, table)] == [int(point is Point.DONE)]
    assert not proxy.traps
    connection.terminate()


@pytest.mark.parametrize("point", Point)
async def test_a_call_that_is_late(shared_postgres: PostgresServer, proxy: Proxy, table: str, point: Point) -> None:
    """The call continues after the action, and the client gets its answer."""
    connection = await asyncpg.connect(proxy.url)
    seen: list[int] = []
    action = lambda: seen.append(count(shared_postgres, table))  # noqa: E731
    trap = proxy.trap(rf"insert into {table}", point, Then.FORWARD, action)
    assert await connection.execute(f"INSERT INTO {table}.row VALUES ('1')") == "INSERT 0 1"
    assert trap.done.is_set()
    assert seen == [1] if point is Point.DONE else len(seen) == 1
    assert await connection.fetchval(f"SELECT count(*) FROM {table}.row") == 1
    await connection.close()


async def test_an_action_that_ends_the_connection_of_its_call(proxy: Proxy) -> None:
    """The action is done, as with a node that it kills."""
    connection = await asyncpg.connect(proxy.url)

    def end() -> None:
        proxy.cut()
        wait_until(lambda: not proxy._links, "the end of the connection")

    trap = proxy.trap("SELECT 7", Point.DONE, action=end)
    with pytest.raises(LOST):
        await connection.fetchval("SELECT 7")
    assert await asyncio.to_thread(trap.done.wait, DEADLINE_S)


async def test_cut_and_hold(shared_postgres: PostgresServer, proxy: Proxy) -> None:
    """Cut connections end; held ones stay, and continue later."""
    first = await asyncpg.connect(proxy.url)
    proxy.cut()
    with pytest.raises(LOST):
        await first.execute("SELECT 1")
    second = await asyncpg.connect(proxy.url)
    proxy.hold()
    answer = asyncio.ensure_future(second.fetchval("SELECT 7"))
    assert not (await asyncio.wait([answer], timeout=0.05))[0]
    proxy.release()
    assert await answer == 7
    await second.close()
