"""The database as one node uses it: calls are committed once, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from bitarray import bitarray

from broker.cluster.database import Database
from broker.cluster.database_rows import SharedCall
from broker.cluster.errors import DatabaseRefused, Fenced, Unreachable
from broker.cluster.hint import FREE, LOOK, Hint
from tests.cluster.members import LEASE_MS, LEVEL, counts_of, held_by, joined, publish, until
from tests.cluster.proxy import Point, Proxy, Then
from tests.deadline import wait_until_async
from tools.postgres_server import PostgresServer


@pytest.fixture
def proxy(postgres_url: str) -> Any:
    """Provide a proxy in front of PostgreSQL."""
    with Proxy(postgres_url) as made:
        yield made


async def rows(url: str, schema: str, statement: str) -> list[tuple]:
    """Return what a statement finds, from outside of the cluster."""
    connection = await asyncpg.connect(url, server_settings={"search_path": f'"{schema}"'})
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def found(query: Callable[[], Any]) -> None:
    """Wait until a query finds something."""
    await wait_until_async(query, "no row of the query")


# ---- functions


async def test_messages_go_from_one_node_to_another(postgres_url: str, schema: str) -> None:
    """Another node leases and reads the messages that one node commits, and returns some and settles some."""
    async with joined(postgres_url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
        number, ring, refused, _ = await a.database.commit(publish(), synchronous=True)
        assert refused == []
        assert await counts_of(b.database, [LEVEL]) == {LEVEL: (5, 35)}
        [row] = await b.database.lease([LEVEL], [3], [0])
        assert (row.number, row.ring, row.bits, row.more) == (number, ring, bitarray("11100"), True)
        assert await b.database.chunks(ring, [number]) == [(number, b"records")]
        assert await b.database.locate([LEVEL], [number]) == [(LEVEL, number, ring)]
        await b.database.give_back([LEVEL], [number], [bitarray("01000")], [bitarray("01000")], [{"1": [2, 1]}])
        settle = SharedCall(t_level=[LEVEL], t_number=[number], t_bits=[bitarray("10000")])
        await b.database.commit(settle, synchronous=False)
        assert [(row.bits, row.seen, row.counts) for row in await held_by(b.database)] == [
            (bitarray("00100"), None, None)
        ]
        [row] = await a.database.lease([LEVEL], [9], [0])
        assert (row.bits, row.seen, row.counts) == (bitarray("01011"), bitarray("01000"), {"1": [2, 1]})
        assert (await a.database.lease([LEVEL], [9], [0]))[0].number is None
        assert await a.database.purge([LEVEL]) == {LEVEL: 0}


async def test_a_statement_is_prepared_once(postgres_url: str, schema: str) -> None:
    """Later calls of a function send its arguments only."""
    async with joined(postgres_url, schema) as a:
        for _ in range(5):
            await a.database.commit(publish(), synchronous=False)
        statement = "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE starts_with(statement, $1)"
        prepared = await a.database.link.fetch("call", statement, "SELECT * FROM commit(")
        assert [row[0] for row in prepared] == [5]


# ---- breaks


@pytest.mark.parametrize("point", [*Point])
async def test_a_call_whose_connection_breaks_is_committed_once(
    postgres_url: str, proxy: Proxy, schema: str, point: Point
) -> None:
    """Before it arrives, while it runs, or after it was committed: it is sent again under its key."""
    async with joined(proxy.url, schema) as a:
        await a.database.commit(publish(), synchronous=True)
        trap = proxy.trap(r"\bcommit\(", point)
        number, _, refused, _ = await a.database.commit(publish(3), synchronous=True)
        assert trap.sprung.is_set()
        found = await rows(postgres_url, schema, "SELECT number, count FROM slot ORDER BY number")
        assert found[1:] == [(number, 3)]
        assert refused == []
        assert (await a.database.commit(publish(4), synchronous=True)).number > number


async def test_calls_are_committed_once_and_in_order_through_many_breaks(
    postgres_url: str, proxy: Proxy, schema: str
) -> None:
    """Every answered number has its messages, and the numbers ascend."""
    async with joined(proxy.url, schema) as a:
        answered = []
        for count in range(1, 25):
            proxy.trap(r"\bcommit\(", [*Point][count % 3])
            answered.append(((await a.database.commit(publish(count), synchronous=True)).number, count))
        found = await rows(postgres_url, schema, "SELECT number, count FROM slot ORDER BY number")
    assert found == answered


async def test_held_rows_are_compared_after_the_result_of_the_call_in_flight(
    postgres_url: str, proxy: Proxy, schema: str
) -> None:
    """The rows include what that call gave to this node, and its caller knows them by then."""
    async with joined(proxy.url, schema) as a:
        order: list[Any] = []
        a.database.reconcile = lambda held: order.append([(row.number, row.bits) for row in held])
        proxy.trap(r"\bcommit\(", Point.DONE)
        number = (await a.database.commit(publish(3, mine=2), synchronous=True)).number
        order.append(number)
        await until(lambda: len(order) == 2)
        assert order == [number, [(number, bitarray("110"))]]


async def test_new_calls_and_leases_wait_until_held_rows_were_compared(
    postgres_url: str, proxy: Proxy, schema: str
) -> None:
    """Only heartbeats and reads continue before, so that the lease of the node lives."""
    async with joined(proxy.url, schema) as a:
        may_go_on = threading.Event()

        def wait() -> None:
            may_go_on.wait()

        trap = proxy.trap(r"\bheld\(", Point.ASKED, Then.FORWARD, wait)
        a.database.link.drop("test")
        await until(trap.sprung.is_set)
        so_far = len(proxy.calls)
        work = asyncio.gather(
            a.database.commit(publish(), synchronous=True), a.database.lease([LEVEL], [1], [0]), a.database.purge([9])
        )
        for _ in range(20):
            await a.database.members()  # what was sent at all was sent before
        sent = {sql.removeprefix("SELECT * FROM ").partition("(")[0] for sql in proxy.calls[so_far:]}
        may_go_on.set()
        assert "members" in sent
        assert sent <= {"members", "beat", "forget", "turn_ring"}
        await work


async def test_a_lease_whose_answer_was_lost_is_told_by_the_database(
    postgres_url: str, proxy: Proxy, schema: str
) -> None:
    """Its caller hears that the database was unreachable; the rows that it moved come with all others that are held."""
    async with joined(proxy.url, schema) as a:
        number = (await a.database.commit(publish(), synchronous=True)).number
        proxy.trap(r"\blease\(", Point.DONE)
        with pytest.raises(Unreachable):
            await a.database.lease([LEVEL], [2], [0])
        await until(lambda: a.rows)
        assert [(row.number, row.bits) for row in a.rows[0]] == [(number, bitarray("11000"))]
        assert a.told == ["joining", "joined", "acts"]


async def test_a_lease_that_still_runs_after_a_break_is_ended_before_held_rows_are_read(
    postgres_url: str, schema: str
) -> None:
    """Else it might move rows of which the node never learns."""
    async with joined(postgres_url, schema) as a:
        await a.database.commit(publish(), synchronous=True)
        other = await asyncpg.connect(postgres_url, server_settings={"search_path": f'"{schema}"'})
        async with other.transaction():
            await other.execute("LOCK TABLE slot IN ACCESS EXCLUSIVE MODE")
            lease = asyncio.ensure_future(a.database.lease([LEVEL], [2], [0]))
            await found(lambda: waits(postgres_url, schema, "lease"))
            a.database.link.drop("test")
            with pytest.raises(Unreachable):
                await lease
            await found(lambda: waits(postgres_url, schema, "held"))
            assert not await waits(postgres_url, schema, "lease")
        await other.close()
        await until(lambda: a.rows)
        assert a.rows == [[]]
        assert await rows(postgres_url, schema, "SELECT holder FROM slot") == [("",)]


async def waits(url: str, schema: str, call: str) -> bool:
    """Return whether a call of a node of this schema waits for a lock."""
    statement = f"""
        SELECT 1 FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND query LIKE '%FROM {call}(%' AND application_name LIKE '%{schema}'
    """
    return bool(await rows(url, schema, statement))


async def test_a_call_goes_on_when_its_caller_is_cancelled(postgres_url: str, schema: str) -> None:
    """A commit is never cancelled, as no one would know its result."""
    async with joined(postgres_url, schema) as a:
        other = await asyncpg.connect(postgres_url, server_settings={"search_path": f'"{schema}"'})
        async with other.transaction():
            await other.execute("LOCK TABLE batch IN ACCESS EXCLUSIVE MODE")
            call = asyncio.ensure_future(a.database.commit(publish(), synchronous=True))
            await found(lambda: waits(postgres_url, schema, "commit"))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: a.database._newest == 1)
        assert await other.fetchval("SELECT count(*) FROM slot") == 1
        await other.close()


async def test_hints_reach_the_other_nodes_whole(postgres_url: str, schema: str) -> None:
    """A hint that is too long for one NOTIFY comes in several; a node does not hear its own."""
    async with joined(postgres_url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
        levels = [*range(10**12, 10**12 + 2000)]
        await a.database.notify(Hint(FREE, 5, levels))
        await a.database.notify(Hint(FREE, 6))
        await until(lambda: Hint(FREE, 6, []) in b.hints)
        heard = [hint for hint in b.hints if hint.kind == FREE]
        assert len(heard) > 2
        assert [level for hint in heard for level in hint.levels] == levels
        assert not [hint for hint in a.hints if hint.kind == FREE]


async def test_a_node_looks_by_itself_after_a_break(postgres_url: str, proxy: Proxy, schema: str) -> None:
    """Hints that were sent meanwhile are lost; later ones arrive."""
    async with joined(proxy.url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
        looks = [hint.kind for hint in a.hints].count(LOOK)
        proxy.cut()
        await until(lambda: [hint.kind for hint in a.hints].count(LOOK) > looks)
        await b.database.notify(Hint(FREE, 6))
        await until(lambda: Hint(FREE, 6, []) in a.hints)


# ---- the fence, and going back in time


async def test_an_epoch_that_was_counted_out_commits_nothing(postgres_url: str, schema: str) -> None:
    """The call raises Fenced, and the node hears of it."""
    async with joined(postgres_url, schema) as a:
        a.may_be_lost.clear()
        await rows(postgres_url, schema, "SELECT leave(node, epoch) FROM member")
        with pytest.raises(Fenced):
            await a.database.commit(publish(), synchronous=True)
        with pytest.raises(Fenced):
            await a.database.lease([LEVEL], [1], [0])
        assert not a.node.may_act()
        assert await rows(postgres_url, schema, "SELECT 1 FROM slot") == []
        a.may_be_lost.set()
        await until(lambda: a.told == ["joining", "joined", "acts", "lost", "joining", "joined", "acts"])
        await until(a.node.may_act)
        await a.database.commit(publish(), synchronous=True)


async def test_a_call_that_waits_for_the_database_ends_with_its_epoch(
    postgres_url: str, proxy: Proxy, schema: str
) -> None:
    """Nothing is confirmed of it, also if it was committed."""
    async with joined(proxy.url, schema, "a", lease_ms=LEASE_MS) as a:
        await a.database.commit(publish(), synchronous=True)
        trap = proxy.trap(r"\bcommit\(", Point.DONE, action=proxy.hold)
        call = asyncio.ensure_future(a.database.commit(publish(), synchronous=True))
        await until(trap.sprung.is_set)
        async with joined(postgres_url, schema, "b", lease_ms=LEASE_MS) as b:
            await until(lambda: b.names == ["b"])  # a was counted out
            proxy.release()
            with pytest.raises(Fenced):
                await call
            await until(lambda: b.names == ["a", "b"])
        assert "lost" in a.told
        assert a.database.generation == 1


async def test_another_timeline_moves_the_numbers_forward(postgres_url: str, schema: str) -> None:
    """The sequence of a standby that took over may be behind."""
    async with joined(postgres_url, schema) as a:
        before = (await a.database.commit(publish(), synchronous=True)).number
        await rows(postgres_url, schema, "UPDATE cluster SET timeline = timeline + 1")
        a.database.link.drop("test")
        after = (await a.database.commit(publish(), synchronous=True)).number
        assert after > before + 1_000_000
        assert a.told == ["joining", "joined", "acts"]


async def test_a_database_that_went_back_in_time_makes_every_node_join_again(postgres_url: str, schema: str) -> None:
    """The node that misses a call begins a generation; the others read it with their beats."""
    async with joined(postgres_url, schema, "a") as a, joined(postgres_url, schema, "b") as b:
        await a.database.commit(publish(), synchronous=True)
        await rows(postgres_url, schema, "DELETE FROM batch")
        a.database.link.drop("test")
        await until(lambda: a.told[3:] == b.told[3:] == ["lost", "joining", "joined", "acts"])
        await until(lambda: a.node.may_act() and b.node.may_act())
        assert a.database.generation == b.database.generation == 2
        [row] = await b.database.lease([LEVEL], [9], [0])
        assert row.seen == bitarray("11111")
        a.database.link.drop("test")  # what the new epoch has not committed cannot be missing
        await until(lambda: a.rows)
        assert a.database.generation == 2


async def test_an_asynchronous_call_may_be_lost(postgres_url: str, schema: str) -> None:
    """A crash of PostgreSQL loses calls that did not wait for the disk; no one was promised anything."""
    async with joined(postgres_url, schema) as a:
        await a.database.commit(publish(), synchronous=True)
        await a.database.commit(publish(), synchronous=False)
        await rows(postgres_url, schema, "DELETE FROM batch WHERE NOT synchronous")
        a.database.link.drop("test")
        await until(lambda: a.rows)
        assert a.told == ["joining", "joined", "acts"]


async def test_a_topology_that_went_back_makes_the_node_join_again(postgres_url: str, schema: str) -> None:
    """A version that this node has applied is no longer in the database."""
    versions = [0]
    async with joined(postgres_url, schema, applied_version=lambda: versions[0]) as a:
        versions[0] = 5
        a.database.link.drop("test")
        await until(lambda: "lost" in a.told)
        versions[0] = 0
        await until(lambda: a.told[3:] == ["lost", "joining", "joined", "acts"])
        assert a.database.generation == 2


async def test_a_call_that_no_standby_confirmed_is_not_answered(postgres: PostgresServer, schema: str) -> None:
    """PostgreSQL says so by a warning; the call is sent again until a standby has it."""
    async with joined(postgres.url, schema) as a:
        other = await asyncpg.connect(postgres.url, server_settings={"search_path": f'"{schema}"'})
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%commit(%'"
        postgres.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        postgres.sql("SELECT pg_reload_conf()")  # takes effect some time after this
        calls = 0
        call: asyncio.Future[Any] = asyncio.ensure_future(asyncio.sleep(0))
        while not await other.fetch(waiting):
            if call.done():
                calls += 1
                call = asyncio.ensure_future(a.database.commit(publish(), synchronous=True))
            await asyncio.sleep(0.005)
        await other.execute("SELECT pg_cancel_backend(pid) FROM (" + waiting + ") AS w")
        await found(lambda: other.fetch("SELECT FROM batch WHERE sequence = $1", calls))
        await found(lambda: other.fetch(waiting))  # it was sent again
        assert not call.done()
        await other.execute("SET synchronous_commit = off")
        await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await other.execute("SELECT pg_reload_conf()")
        assert (await call).refused == []
        assert await other.fetchval("SELECT count(*) FROM slot") == calls
        await other.close()


# ---- refusals


async def test_a_wrong_password_is_refused_without_telling_it(postgres_url: str, schema: str) -> None:
    """The text names the database and the reason in one line."""
    database = Database(postgres_url.replace("slotmq:", "slotmq:wrong"), "a", schema=schema)
    with pytest.raises(DatabaseRefused, match="password authentication failed") as caught:
        await database.open()
    assert "wrong" not in str(caught.value) and "\n" not in str(caught.value)
    await database.close()


async def test_a_database_that_is_not_there_is_unreachable(schema: str) -> None:
    """A start gives up after its patience."""
    database = Database("postgresql://u:secret@127.0.0.1:1/x", "a", schema=schema)
    with pytest.raises(Unreachable, match=r"postgresql://u@127.0.0.1:1/x: .*refused"):
        await database.open(patience_s=0.2)
    await database.close()


@pytest.mark.parametrize("url", ["http://x", "postgresql://a:1,b:x/y", "nonsense"])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    """It is the operator's mistake, and no other attempt helps."""
    database = Database(url, "a")
    with pytest.raises(DatabaseRefused):
        await database.open()
    await database.close()


async def test_a_node_reaches_the_server_that_takes_writes(postgres_url: str, schema: str) -> None:
    """The URL may name several hosts; one that is away is passed over."""
    login, _, rest = postgres_url.removeprefix("postgresql://").partition("@")
    address, _, name = rest.partition("/")
    async with joined(f"postgresql://{login}@127.0.0.1:1,{address}/{name}", schema) as a:
        assert a.node.may_act()


async def test_a_commit_that_is_not_answered_is_trouble(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it waits for: publishers are told, and the broker is not ready."""
    monkeypatch.setattr("broker.cluster.database.ANSWER_S", 0.05)
    async with joined(postgres_url, schema) as a:
        other = await asyncpg.connect(postgres_url, server_settings={"search_path": f'"{schema}"'})
        async with other.transaction():
            await other.execute("SELECT FROM member FOR UPDATE")
            call = asyncio.ensure_future(a.database.commit(publish(), synchronous=True))
            await until(lambda: a.database.trouble == "the database of the cluster does not answer")
            assert a.node.may_act()
        await call
        assert a.database.trouble == ""
        await other.close()
