"""A connection pooler between a node and PostgreSQL: session mode works, the other modes are refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from broker.cluster.connections import LANES, Backend, Connections, _prepared
from broker.cluster.errors import POOLER, DatabaseRefused, Unreachable
from broker.cluster.server_address import ServerAddress
from tests.cluster.bouncer import NEEDS_PGBOUNCER, Bouncer
from tests.cluster.members import joined, publish, until
from tests.cluster.test_database import rows


@pytest.fixture
def bouncer(tmp_path: Path, postgres_url: str) -> Iterator[Callable[..., Bouncer]]:
    """Provide a function that starts a pgbouncer with options."""
    started: list[Bouncer] = []

    def start(*options: str) -> Bouncer:
        started.append(Bouncer(tmp_path, postgres_url, *options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@NEEDS_PGBOUNCER
@pytest.mark.fault
async def test_a_node_goes_on_through_a_pooler_in_session_mode(
    bouncer: Callable[..., Bouncer], postgres_url: str, schema: str
) -> None:
    """It commits and hears; when a session dies, and when the pooler does, it continues as the epoch that it was."""
    pooler = bouncer("pool_mode = session")
    async with joined(pooler.url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
        await a.database.commit(publish(), synchronous=True)
        for broken in (1, 2):
            a.rows.clear()
            if broken == 1:
                name = ServerAddress("", "a", schema).application_name
                statement = (
                    f"SELECT pg_terminate_backend(min(pid)) FROM pg_stat_activity WHERE application_name = '{name}'"
                )
                await rows(postgres_url, schema, statement)
            else:
                pooler.stop()
                await until(lambda: not a.database.link.is_up)
                pooler.start()
            await until(lambda: a.rows)
            assert (await a.database.commit(publish(), synchronous=True)).refused == []
        assert a.told == ["joining", "joined", "acts"]
        assert b.names == ["a", "b"]


@NEEDS_PGBOUNCER
@pytest.mark.parametrize(
    "options",
    [["pool_mode = transaction"], ["pool_mode = transaction", "server_round_robin = 1"], ["pool_mode = statement"]],
)
async def test_other_modes_are_refused(bouncer: Callable[..., Bouncer], schema: str, options: list[str]) -> None:
    """Each time, also when the pooler has sessions enough for all connections, and without a trace in its sessions."""
    address = ServerAddress(bouncer(*options, "min_pool_size = 8").url, "a", schema)
    for _ in range(3):
        with pytest.raises(DatabaseRefused, match=POOLER[:40]):
            await Connections.open(address)


async def test_a_process_that_serves_another_client_by_now_is_not_ended(postgres_url: str, schema: str) -> None:
    """After a break a node ends its old sessions, but a pooler may have given them to others, or to this node again."""
    connections = await Connections.open(ServerAddress(postgres_url, "a", schema))
    sessions = [await asyncpg.connect(postgres_url) for _ in range(2)]
    try:
        own, another = sessions
        await own.execute(f"SET application_name = '{connections.target.application_name}'")
        found = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        backends = [Backend(*await session.fetchrow(found)) for session in sessions]
        await connections.end_backends([*backends, *connections.backends])
        assert await another.fetchval("SELECT 1") == 1
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await own.fetchval("SELECT 1")
        assert not connections.is_broken
    finally:
        for session in sessions:
            session.terminate()
        await connections.close()


class SharingPooler:
    """Connections of a pooler that gives a session to the next client after each statement.

    As a driver it is one of those connections.
    """

    def __init__(self, pids: deque[int], take: Callable[[deque[int]], int]) -> None:
        self._pids = pids
        self._take = take

    async def fetchval(self, _statement: str) -> int:
        """Return the process of the session that runs the statement, and release it."""
        pid = self._take(self._pids)
        self._pids.append(pid)
        return pid


@pytest.mark.parametrize("take", [deque.pop, deque.popleft])
async def test_sessions_that_change_hands_are_refused(take: Callable[[deque[int]], int]) -> None:
    """Whether the pooler takes the session that was released last or the one that was released first."""
    pids = deque(range(len(LANES)))
    with pytest.raises(DatabaseRefused, match=POOLER[:40]):
        await _prepared(ServerAddress("", "a"), [(SharingPooler(pids, take), row(pid)) for pid in list(pids)])


async def test_a_server_that_is_too_old_is_refused() -> None:
    """Before anything is set that it does not know."""
    with pytest.raises(DatabaseRefused, match="PostgreSQL 14 or newer is needed"):
        await _prepared(ServerAddress("", "a"), [(None, row(1) | {"version": 130_021})])


async def test_one_session_for_all_and_two_servers_are_refused() -> None:
    """Poolers have fewer sessions than clients, and a name may stand for several servers."""
    address = ServerAddress("", "a")
    with pytest.raises(DatabaseRefused, match=POOLER[:40]):
        await _prepared(address, [(None, row(1)), (None, row(1))])
    with pytest.raises(Unreachable, match="different servers"):
        await _prepared(address, [(None, row(1)), (None, row(2) | {"started": 1})])


def row(pid: int) -> dict[str, Any]:
    """Return what a session says of its server."""
    return {"pid": pid, "backend_start": 0, "system_identifier": 1, "timeline": "1", "started": 0, "version": 140_000}
