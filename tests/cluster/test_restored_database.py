"""Nodes that run while their PostgreSQL is replaced by an older copy of itself: the same server and timeline."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cluster.members import TestNode, joined, publish, until
from tools.postgres_server import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow]


class Snapshot:
    """A copy of a server's data folder. It stops the server for as long as it copies."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._postgres = postgres
        self._copy = postgres.folder / "snapshot"
        postgres.stop()
        subprocess.run(["cp", "-a", postgres.data, self._copy], check=True)
        postgres.start()

    def restore(self) -> None:
        """Let the server continue from the copy."""
        self._postgres.stop()
        shutil.rmtree(self._postgres.data)
        self._copy.rename(self._postgres.data)
        self._postgres.start()


async def rejoins(node: TestNode) -> None:
    """Return when a node was lost, for that reason, and acts again."""
    await until(lambda: node.told[-4:] == ["lost", "joining", "joined", "acts"] and node.node.may_act())
    assert (node.reasons, node.database.generation) == (["the database went back in time"], 2)


async def test_the_node_whose_call_is_missing_notices(postgres: PostgresServer, schema: str) -> None:
    """It was a member already when the copy was made."""
    async with joined(postgres.url, schema) as a:
        snapshot = Snapshot(postgres)
        await a.database.commit(publish(), synchronous=True)
        snapshot.restore()
        await rejoins(a)


async def test_a_node_that_the_copy_does_not_know_notices(postgres: PostgresServer, schema: str) -> None:
    """It has not been counted out: its epoch was never given."""
    async with joined(postgres.url, schema, "b"):
        pass
    snapshot = Snapshot(postgres)
    async with joined(postgres.url, schema) as a:
        snapshot.restore()
        await rejoins(a)


async def test_another_node_notices_when_the_publisher_is_gone(postgres: PostgresServer, schema: str) -> None:
    """Beats tell what was committed, so that a node knows it also if it held nothing of it."""
    async with joined(postgres.url, schema, "b") as b:
        snapshot = Snapshot(postgres)
        async with joined(postgres.url, schema) as a:
            number = (await a.database.commit(publish(), synchronous=True)).number
            await until(lambda: any(member.reports.get("newest_number") == number for member in b.node.members))
        snapshot.restore()
        await rejoins(b)


async def test_a_copy_that_lacks_nothing_is_a_restart(postgres: PostgresServer, schema: str) -> None:
    """The node continues with its epoch."""
    async with joined(postgres.url, schema) as a:
        await a.database.commit(publish(), synchronous=True)
        snapshot = Snapshot(postgres)
        a.rows.clear()
        snapshot.restore()
        await until(lambda: a.rows)
        assert a.told == ["joining", "joined", "acts"]
