"""Nodes join, see each other, leave, and are counted out when they are dead. An outage of PostgreSQL ends no one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import subprocess
from pathlib import Path

import asyncpg
import pytest
from bitarray import bitarray

from broker.cluster.errors import NameTaken
from broker.cluster.node import BOOT_TIME
from tests.cluster.members import CALM_MS, LEASE_MS, LEVEL, NodeInThread, TestNode, held_by, joined, publish, until
from tests.cluster.proxy import Point, Proxy, Then
from tests.cluster.test_database import found, rows
from tools.postgres_server import PostgresServer

ROOT = Path(__file__).parents[2]


async def test_nodes_see_each_other_until_one_leaves(postgres_url: str, schema: str) -> None:
    """Every node knows the others within a beat, also that one has left."""
    a, b = TestNode(postgres_url, "a", schema), TestNode(postgres_url, "b", schema)
    await a.node.start()
    await b.node.start()
    await until(lambda: a.names == b.names == ["a", "b"])
    assert a.node.epoch < b.node.epoch
    assert a.node.may_act() and b.node.may_act()
    await b.node.leave()
    assert not b.node.may_act()
    await until(lambda: a.names == ["a"])
    await a.node.leave()


async def test_the_name_of_a_living_node_is_refused(postgres_url: str, schema: str) -> None:
    """A second broker under the name of a living node does not start."""
    first, second = TestNode(postgres_url, "a", schema), TestNode(postgres_url, "a", schema)
    await first.node.start()
    with pytest.raises(NameTaken, match=r"another broker is the node a \(amqp://a\)"):
        await second.node.start()
    assert first.node.may_act()
    await first.node.leave()


async def test_a_dead_node_is_counted_out_and_its_name_can_be_used_again(postgres_url: str, schema: str) -> None:
    """A node that stopped without leaving is counted out by another one."""
    a, b, again = (TestNode(postgres_url, name, schema) for name in "aba")
    await a.node.start()
    await b.node.start()
    await until(lambda: b.names == ["a", "b"])
    await a.node.close()  # as after a kill: it does not leave
    await until(lambda: b.names == ["b"])
    await again.node.start()
    await until(lambda: b.names == ["a", "b"])
    await again.node.leave()
    await b.node.leave()


async def test_a_lone_node_that_was_killed_counts_out_its_former_epoch(postgres_url: str, schema: str) -> None:
    """A restarted broker does not wait for other nodes."""
    dead, again = TestNode(postgres_url, "a", schema), TestNode(postgres_url, "a", schema)
    await dead.node.start()
    await dead.node.close()
    await again.node.start()
    assert again.node.epoch > dead.node.epoch
    assert again.node.may_act()
    await again.node.leave()


async def test_nodes_may_start_at_once(postgres_url: str, schema: str) -> None:
    """One of them makes the schema, and the others wait for it."""
    nodes = [TestNode(postgres_url, name, schema) for name in "abcde"]
    await asyncio.gather(*(one.node.start() for one in nodes))
    await until(lambda: all(one.names == [*"abcde"] for one in nodes))
    assert len({one.node.epoch for one in nodes}) == 5
    await asyncio.gather(*(one.node.leave() for one in nodes))
    assert await rows(postgres_url, schema, "SELECT node FROM member UNION ALL SELECT node FROM beat") == []


async def test_what_a_node_held_is_free_when_it_has_left(postgres_url: str, schema: str) -> None:
    """Another node gets it at once, marked as perhaps delivered before."""
    async with joined(postgres_url, schema, "b") as b:
        a = TestNode(postgres_url, "a", schema)
        await a.node.start()
        await a.database.commit(publish(mine=5), synchronous=True)
        await a.node.leave()
        [row] = await b.database.lease([LEVEL], [9], [0])
        assert row.bits == row.seen == bitarray("11111")


async def test_facts_tell_of_all_nodes(postgres_url: str, schema: str) -> None:
    """Each node reports with its beats; every node can tell of every other."""
    async with (
        joined(postgres_url, schema, "a") as a,
        joined(postgres_url, schema, "b", report=lambda: {"held": 3}, applied_version=lambda: 0) as b,
    ):
        await until(lambda: any(one.get("held") == 3 for one in a.node.facts()["nodes"]))
        facts = a.node.facts()
        assert (facts["node"], facts["epoch"], facts["state"]) == ("a", a.node.epoch, "joined")
        assert facts["schema"] == schema
        assert facts["lease_ms"] == CALM_MS
        assert facts["database_ms"] > 0
        [other] = [one for one in facts["nodes"] if one["node"] == "b"]
        assert (other["epoch"], other["url"], other["state"]) == (b.node.epoch, "amqp://b", "alive")
        assert other.keys() >= {"beat_age_ms", "topology", "database_ms", "lease_ms"}
        database_ms = (await rows(postgres_url, schema, "SELECT now_ms()"))[0][0]
        assert abs(a.node.now_ms() - database_ms) < 1000


async def test_an_operator_may_count_out_a_node_that_is_dead(postgres_url: str, schema: str) -> None:
    """It need not wait for the lease; a node that beats is refused."""
    async with (
        joined(postgres_url, schema, "a", lease_ms=3000) as a,
        joined(postgres_url, schema, "b", lease_ms=3000) as b,
    ):
        dead = TestNode(postgres_url, "c", schema, lease_ms=6000)
        await dead.node.start()
        await until(lambda: a.names == ["a", "b", "c"])
        await dead.node.close()
        assert not await a.node.count_out_now("b")
        assert not await a.node.count_out_now("a")
        assert not await a.node.count_out_now("x")
        assert await a.node.count_out_now("c")
        await until(lambda: b.names == ["a", "b"])
        assert b.told == ["joining", "joined", "acts"]


async def test_a_node_that_beat_since_it_was_looked_at_is_not_counted_out(postgres_url: str, schema: str) -> None:
    """It acts on its lease again: the database compares its beats, and its next beat comes before or after that."""
    async with joined(postgres_url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
        await until(lambda: a.names == ["a", "b"])
        seen = next(member for member in a.node.members if member.node == "b")
        await until(lambda: any(one.node == "b" and one.beats > seen.beats for one in a.node.members))
        assert not await a.database.count_out(seen)
        assert b.node.may_act()


@pytest.mark.parametrize("defective", ["members_seen", "reconcile", "lost"])
async def test_a_defect_in_what_a_node_tells_ends_the_broker(postgres_url: str, schema: str, defective: str) -> None:
    """A node whose beats, or whose way back after a break, ended with an error would wait for ever."""
    failures: list[BaseException] = []

    def break_down(*_: object, **_more: object) -> None:
        raise ZeroDivisionError

    async with joined(postgres_url, schema, failed=failures.append) as a:
        setattr(a, defective, break_down)
        if defective == "reconcile":
            a.database.reconcile = break_down
            a.database.link.drop("test")
        elif defective == "lost":
            await rows(postgres_url, schema, "SELECT leave(node, epoch) FROM member")
        await until(lambda: failures)
        assert isinstance(failures[0], ZeroDivisionError)


async def test_a_node_needs_no_superuser(postgres: PostgresServer, schema: str) -> None:
    """A role that may create a schema in the database is enough, also to count out a node whose session hangs."""
    postgres.sql("CREATE ROLE plain LOGIN PASSWORD 'word'")
    postgres.sql("GRANT CREATE ON DATABASE postgres TO plain")
    url = f"postgresql://plain:word@127.0.0.1:{postgres.port}/postgres"
    async with joined(url, schema, "a") as a, joined(url, schema, "b") as b:
        await until(lambda: a.names == b.names == ["a", "b"])
        a.database.link.drop("test")
        await a.database.commit(publish(), synchronous=True)
        await until(lambda: a.rows)
        assert await b.database.lease([LEVEL], [9], [0])
        await b.database.end_sessions("a")
        await until(lambda: len(a.rows) == 2)
        assert a.told == b.told == ["joining", "joined", "acts"]


# ---- frozen nodes


async def test_a_frozen_node_is_counted_out_and_joins_again_as_a_new_epoch(postgres_url: str, schema: str) -> None:
    """Its messages go to another node; when it wakes, it may not act before it has dropped everything."""
    async with joined(postgres_url, schema, "b", lease_ms=LEASE_MS) as b:
        with NodeInThread(postgres_url, "a", schema) as frozen:
            a = frozen.made
            frozen.do(a.database.commit(publish(mine=5), synchronous=True))
            await until(lambda: b.names == ["a", "b"])
            epoch = a.node.epoch
            frozen.freeze()
            await until(lambda: b.names == ["b"])
            [row] = await b.database.lease([LEVEL], [9], [0])
            assert row.bits == row.seen == bitarray("11111")
            assert not a.node.may_act()
            frozen.thawed.set()
            await until(lambda: b.names == ["a", "b"])
            await until(a.node.may_act)
            assert [one for one in a.told if one not in {"paused", "acts"}] == [
                "joining",
                "joined",
                "lost",
                "joining",
                "joined",
            ]
            assert a.reasons[-1] == "the other nodes counted this one out"
            assert a.node.epoch > epoch
            assert [(one.number, one.bits) for one in await held_by(b.database)] == [(row.number, row.bits)]


async def line_of(output: asyncio.StreamReader, word: bytes) -> bytes:
    """Return the next line that begins with a word; the others are log lines."""
    while not (line := await output.readline()).startswith(word):
        assert line
    return line


async def test_a_stopped_process_does_not_act_when_it_goes_on(postgres_url: str, schema: str) -> None:
    """SIGSTOP takes the whole process; the first thing that it does afterwards is to look at its lease."""
    command = [sys.executable, "-m", "tests.cluster.members", postgres_url, "a", schema]
    async with joined(postgres_url, schema, "b", lease_ms=LEASE_MS) as b:
        process = await subprocess.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            line = await line_of(process.stdout, b"joined")
            await until(lambda: b.names == ["a", "b"])
            os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: b.names == ["b"])
            os.kill(process.pid, signal.SIGCONT)
            assert await line_of(process.stdout, b"lost") == b"lost 0\n"
            assert int((await line_of(process.stdout, b"joined")).split()[1]) > int(line.split()[1])
        finally:
            process.kill()
            await process.wait()


async def test_the_lease_counts_from_when_the_beat_was_sent(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str, schema: str
) -> None:
    """An answer that takes long prolongs it by less: the others count from when they saw the beat."""
    with Proxy(postgres_url) as proxy:
        async with joined(proxy.url, schema, "a", lease_ms=3000) as a:
            passed_s: list[float] = []
            ends_s: list[float] = []

            def seen(*_: object, **_more: object) -> None:
                if passed_s:
                    ends_s.append(a.node._tenure.ends_s)

            monkeypatch.setattr(a, "members_seen", seen)
            trap = proxy.trap(r"\bbeat\(", Point.DONE, Then.FORWARD, lambda: passed_s.append(BOOT_TIME()))
            await until(lambda: ends_s)
            assert trap.sprung.is_set()
            assert ends_s[0] < passed_s[0] + 3


async def test_a_new_epoch_waits_until_the_old_one_was_dropped(postgres_url: str, schema: str) -> None:
    """Clients are closed and leases forgotten first; meanwhile the node is not a member."""
    async with joined(postgres_url, schema, "a") as a:
        a.may_be_lost.clear()
        await rows(postgres_url, schema, "SELECT leave(node, epoch) FROM member")
        await until(lambda: not a.node.may_act())
        await found(lambda: rows(postgres_url, schema, "SELECT 1 WHERE NOT EXISTS (SELECT FROM member)"))
        a.may_be_lost.set()
        await until(a.node.may_act)
        assert a.told == ["joining", "joined", "acts", "lost", "joining", "joined", "acts"]


async def test_an_epoch_that_ends_while_the_node_catches_up_is_lost(postgres_url: str, schema: str) -> None:
    """Its catching up is given up, and the next epoch starts over."""
    a = TestNode(postgres_url, "a", schema)
    a.may_catch_up.clear()
    start = asyncio.ensure_future(a.node.start())
    await until(lambda: a.node.epoch)
    await rows(postgres_url, schema, "SELECT leave(node, epoch) FROM member")
    await until(lambda: "lost" in a.told)
    a.may_catch_up.set()
    await start
    assert a.told == ["joining", "lost", "joining", "joined", "acts"]
    assert a.node.may_act()
    await a.node.leave()


async def test_a_dead_node_whose_session_hangs_is_counted_out(postgres_url: str, schema: str) -> None:
    """Its call holds the fence, and never ends by itself: the sessions of the node are ended."""
    async with joined(postgres_url, schema, "b", lease_ms=LEASE_MS) as b:
        a = TestNode(postgres_url, "a", schema)
        await a.node.start()
        settings = {"search_path": f'"{schema}"', "application_name": a.database.link.target.application_name}
        hanging = await asyncpg.connect(postgres_url, server_settings=settings)
        await hanging.execute("BEGIN")
        await hanging.fetch("SELECT fence(node, epoch) FROM member WHERE node = 'a'")
        await until(lambda: b.names == ["a", "b"])
        await a.node.close()
        await until(lambda: b.names == ["b"])
        assert hanging.is_closed()


# ---- outages


async def test_an_outage_of_postgresql_ends_nobody(postgres: PostgresServer, schema: str) -> None:
    """Nodes pause when their leases end, and continue as the same epochs when it is back, with what they held."""
    async with (
        joined(postgres.url, schema, "a", lease_ms=2 * LEASE_MS) as a,
        joined(postgres.url, schema, "b", lease_ms=2 * LEASE_MS) as b,
        joined(postgres.url, schema, "c", lease_ms=2 * LEASE_MS) as c,
    ):
        nodes = [a, b, c]
        await until(lambda: all(one.names == ["a", "b", "c"] for one in nodes))
        number = (await a.database.commit(publish(mine=3), synchronous=True)).number
        epochs = [one.node.epoch for one in nodes]
        await asyncio.to_thread(postgres.stop)
        waiting = asyncio.ensure_future(b.database.commit(publish(), synchronous=True))
        began_s = BOOT_TIME()
        await until(lambda: all("paused" in one.told for one in nodes))
        await until(lambda: BOOT_TIME() > began_s + 6 * LEASE_MS / 1000)
        await asyncio.to_thread(postgres.start)
        await until(lambda: all(one.told[-1] == "acts" for one in nodes))
        assert (await waiting).number > number
        await until(lambda: a.rows)
        assert [(row.number, row.bits) for row in a.rows[-1]] == [(number, bitarray("11100"))]
        assert [one.node.epoch for one in nodes] == epochs
        assert all("lost" not in one.told for one in nodes)


async def test_a_killed_postgresql_ends_nobody(postgres: PostgresServer, schema: str) -> None:
    """Nor does one backend that crashes, for which PostgreSQL ends all sessions."""
    async with joined(postgres.url, schema, "a") as a, joined(postgres.url, schema, "b") as b:
        await until(lambda: a.names == b.names == ["a", "b"])
        [(pid,)] = await rows(
            postgres.url, schema, "SELECT max(pid) FROM pg_stat_activity WHERE application_name <> ''"
        )
        postgres.kill_backend(pid)
        await until(lambda: a.rows and b.rows)
        await until(lambda: a.node.may_act() and b.node.may_act())
        postgres.kill()
        a.rows.clear()
        b.rows.clear()
        await asyncio.to_thread(postgres.start)
        await until(lambda: a.rows and b.rows)
        await until(lambda: a.node.may_act() and b.node.may_act())
        assert "lost" not in a.told + b.told


async def test_cut_connections_end_nobody(postgres_url: str, schema: str) -> None:
    """A node connects again within its lease, so that the others do not miss it."""
    with Proxy(postgres_url) as proxy:
        async with joined(proxy.url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
            for _ in range(10):
                await until(lambda: b.names == ["a", "b"])
                a.rows.clear()
                proxy.cut()
                await until(lambda: a.rows)
                await until(a.node.may_act)
            assert "lost" not in a.told + b.told


async def test_a_network_that_loses_everything_pauses_the_node(postgres_url: str, schema: str) -> None:
    """Its connections stay open, so that only its lease tells; when packets arrive again it continues."""
    with Proxy(postgres_url) as proxy:
        async with joined(proxy.url, schema, "a", lease_ms=LEASE_MS) as a:
            proxy.hold()
            await until(lambda: "paused" in a.told)
            proxy.release()
            await until(lambda: a.told[-1] == "acts")
            proxy.hold()  # this time until the node gives its connections up
            await until(lambda: not a.database.link.is_up)
            assert a.told[-1] == "paused"
            proxy.release()
            await until(lambda: a.told[-1] == "acts")
            assert "PostgreSQL did not answer within the lease of 500 ms" in a.reasons
            assert "lost" not in a.told
