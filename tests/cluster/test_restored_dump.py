"""A dump that is restored while nodes run and their connections stand: the database goes back in time under them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.cluster.errors import Fenced
from tests.cluster.members import LEVEL, TestNode, joined, publish, until
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow]

PERSISTENT = pika.BasicProperties(delivery_mode=2)
AGAIN = ["lost", "joining", "joined", "acts"]
LEASE_MS = 1500


class Dump:
    """The dump of a schema by pg_dump."""

    def __init__(self, postgres: PostgresServer, schema: str, folder: Path) -> None:
        self._postgres = postgres
        self._file = str(folder / "dump")
        words = ["--format", "custom", "--schema", schema, "--file", self._file, postgres.url]
        subprocess.run([postgres.program("pg_dump"), *words], check=True, capture_output=True)

    def restore(self) -> None:
        """Go back to it in one transaction. A node may have locked what this one drops next, so it is tried again."""
        words = ["--clean", "--single-transaction", "--dbname", self._postgres.url, self._file]
        command = [str(self._postgres.program("pg_restore")), *words]
        wait_until(lambda: not subprocess.run(command, capture_output=True, check=False).returncode, "a restore")


def steps(node: TestNode) -> list[str]:
    """Return what became of the epochs of a node. It may pause while the restore has locked everything."""
    told = [one for one in node.told[3:] if one != "paused"]
    return [one for at, one in enumerate(told) if one != "acts" or told[at - 1] == "joined"]


async def rejoins(node: TestNode, generation: int = 2) -> None:
    """Return when a node was lost, once for each generation, and acts again."""
    await until(lambda: node.node.may_act() and steps(node) == AGAIN * (generation - 1))
    assert "the database went back in time" in node.reasons
    assert node.database.generation == generation


async def test_every_node_notices_though_it_misses_nothing(
    shared_postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    """Its own beats are missing. The messages that are there may have been delivered since."""
    url = shared_postgres.url
    async with joined(url, schema, "a", lease_ms=LEASE_MS) as a, joined(url, schema, "b", lease_ms=LEASE_MS) as b:
        await a.database.commit(publish(), synchronous=True)
        dump = await asyncio.to_thread(Dump, shared_postgres, schema, tmp_path)
        beats = a.node.members[0].beats
        await until(lambda: a.node.members[0].beats > beats + 1)
        await asyncio.to_thread(dump.restore)
        await rejoins(a)
        await rejoins(b)
        [row] = await b.database.lease([LEVEL], [9], [0])
        assert row.seen is not None and row.seen.all()
        assert a.database.failing.count == b.database.failing.count == 0


async def test_a_call_is_not_confirmed_by_an_older_database(
    shared_postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    """Its number was given before: the node knows at once, and gets numbers that no one had."""
    async with joined(shared_postgres.url, schema, lease_ms=60_000) as a:  # its next beat comes too late
        dump = await asyncio.to_thread(Dump, shared_postgres, schema, tmp_path)
        known = (await a.database.commit(publish(), synchronous=True)).number
        await asyncio.to_thread(dump.restore)
        with pytest.raises(Fenced):
            await a.database.commit(publish(), synchronous=True)
        await rejoins(a)
        assert a.node.epoch > known
        assert (await a.database.commit(publish(), synchronous=True)).number > a.node.epoch


async def test_a_node_that_joined_since_joins_again(
    shared_postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    """The dump does not know it, nor its epoch, which no other node gets."""
    async with joined(shared_postgres.url, schema, "b"):
        pass
    dump = await asyncio.to_thread(Dump, shared_postgres, schema, tmp_path)
    async with joined(shared_postgres.url, schema, "a", lease_ms=LEASE_MS) as a:
        before = a.node.epoch
        await asyncio.to_thread(dump.restore)
        await until(lambda: a.node.may_act() and steps(a) == AGAIN)
        assert a.node.epoch > before
        assert a.database.generation == 2


async def test_a_generation_is_newer_than_all_before(
    shared_postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    """Also than those that came after the dump."""
    async with joined(shared_postgres.url, schema, lease_ms=LEASE_MS) as a:
        dump = await asyncio.to_thread(Dump, shared_postgres, schema, tmp_path)
        await a.database.commit(publish(), synchronous=True)
        for generation in (2, 3):
            await asyncio.to_thread(dump.restore)
            await rejoins(a, generation)
            await a.database.commit(publish(), synchronous=True)


def wait_forever(channel: BlockingChannel) -> None:
    """Let a connection work until it ends."""
    while True:
        channel.connection.process_data_events(0.05)


def test_clients_are_closed_and_find_what_the_dump_has(
    nodes: Nodes, shared_postgres: PostgresServer, tmp_path: Path
) -> None:
    """Queues that are no more are declared again, and both nodes continue."""
    for name in ("a", "b"):
        nodes.errors_expected(name, "node.lost")
        nodes.errors_expected(name, "database.went_back")
        nodes.errors_expected(name, "database.failing")  # between two steps of the restore
    one, two = nodes.channel("a", confirms=True), nodes.channel("b", confirms=True)
    one.queue_declare("old", durable=True)
    one.basic_publish("", "old", b"before", PERSISTENT)
    dump = Dump(shared_postgres, nodes.schema, tmp_path)
    two.queue_declare("new", durable=True)
    two.basic_publish("", "new", b"after", PERSISTENT)
    assert two.basic_get("old", auto_ack=True)[2] == b"before"
    dump.restore()
    for channel in (one, two):
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*went back in time"):
            wait_forever(channel)
    for name, queue in (("a", "new"), ("b", "newer")):
        channel = nodes.channel(name, confirms=True)
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, b"again", PERSISTENT)
        assert nodes.channel("b").basic_get(queue, auto_ack=True)[2] == b"again"
    method, _, body = nodes.channel("a").basic_get("old", auto_ack=True)
    assert (method.redelivered, body) == (True, b"before")
