"""Queues with limits in PostgreSQL: what they drop and refuse, and the room that consumers of all nodes have."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from broker.cluster.schema import install
from broker.cluster.shared_topology import replace_limits
from tests.cluster.invariants import violations
from tests.cluster.members import joined
from tests.cluster.sql_session import Session, Sessions, Share, bits
from tests.deadline import wait_until_async

ROOM = "SELECT consumer_add($1, $2, 5, false)"


async def ready(session: Session, level: int = 5) -> list[str]:
    """Return the bits of the free rows of a level, after a check of the tables."""
    assert await violations(session.connection) == []
    return [row["bits"] for row in await session.free(level)]


async def limit(session: Session, limits: str, *, level: int = 5, counter: str = "NULL", overflow: str) -> None:
    """Give a level limits; nothing is dead-lettered."""
    await session.value(f"SELECT set_level({level}, '/', {counter}, {limits}, '{overflow}')")


async def test_a_commit_drops_what_is_too_much(a: Session) -> None:
    """The oldest messages go in the call that makes the queue too long, also those of the call itself."""
    await limit(a, "3, NULL", overflow="drop-head")
    await a.commit(Share(5, free="11"))
    assert await ready(a) == ["11"]
    await a.commit(Share(5, free="11"))
    assert await ready(a) == ["01", "11"]
    await a.commit(Share(5, free="11111"))
    assert await ready(a) == ["00111"]


async def test_a_commit_drops_until_the_newest_fit_into_the_bytes(a: Session) -> None:
    """As many of the oldest messages go as are needed, and one that alone is too large goes, too."""
    await limit(a, "NULL, 10", overflow="drop-head")
    await a.commit(Share(5, free="111", sizes=(4, 4, 2)))
    assert await ready(a) == ["111"]
    await a.commit(Share(5, free="1", sizes=(7,)))
    assert await ready(a) == ["001", "1"]
    await a.commit(Share(5, free="1", sizes=(11,)))
    assert await ready(a) == []


async def test_a_call_under_way_counts_for_a_limit_that_comes_meanwhile(
    a: Session, sessions: Sessions, postgres_url: str, schema: str
) -> None:
    """It knows of no limit and counts nothing, so the messages are counted when it has ended."""
    async with joined(postgres_url, schema, "b") as b:
        transaction = await a.in_flight()
        await a.commit(Share(5, free="1111"))
        rules = {"level": 5, "vhost": '"/"', "counter": 5, "max_length": 9, "max_bytes": None, "overflow": "drop-head"}
        more = {"single_active": False, "buries": False}
        replacing = asyncio.create_task(replace_limits(b.database, "/", [rules | more]))
        other = await sessions("a")
        await wait_until_async(lambda: other.value("SELECT count(*) FROM level"), "the limit")
        await transaction.commit()
        await replacing
        assert await ready(a) == ["1111"]
        assert [row["bits"] for row in await a.lease((5, 2))] == ["1100"]
        assert await ready(a) == ["0011"]


async def test_the_highest_level_of_a_queue_loses_first(a: Session) -> None:
    """The levels share the limit, and the head of the queue is that of its highest level."""
    for level in (5, 6, 7):
        await limit(a, "2, NULL", level=level, counter="5", overflow="drop-head")
    await a.commit(Share(5, free="1"), Share(7, free="1"))
    await a.commit(Share(5, free="11"))
    assert await ready(a, 7) == []
    assert await ready(a) == ["11"]


async def test_the_levels_of_a_quorum_queue_are_found_and_lose_in_their_order(a: Session) -> None:
    """Their numbers do not follow that of the default level, which is the one of priority 4."""
    low, default, high = 1 << 46 | 5, 5, 10 << 46 | 5
    for level in (low, default, high):
        await limit(a, "4, NULL", level=level, counter="5", overflow="drop-head")
    await a.commit(Share(low, free="1"), Share(default, free="1"), Share(high, free="1"), Share(6, free="1"))
    assert await a.value("SELECT array_agg(l) FROM levels_of(5) l") == [low, high]
    assert await a.value("SELECT array_agg(l) FROM levels_in_use() l") == [low, high]
    assert await a.value("SELECT count(*) FROM levels_of(6)") == 0
    await a.commit(Share(low, free="11"))
    assert await ready(a, high) == []
    await a.commit(Share(low, free="1"))
    assert await ready(a, default) == []
    assert await a.value("SELECT array_agg(l) FROM levels_in_use() l") == [low]


async def test_what_is_dead_lettered_waits_for_the_keeper(a: Session) -> None:
    """Only a broker can route a dead letter."""
    await a.value("SELECT set_level(5, '/', NULL, 1, NULL, 'drop-head', false, true)")
    await a.commit(Share(5, free="111"))
    assert await ready(a) == ["111"]


async def test_messages_that_come_back_to_a_full_queue_make_the_head_go(a: Session) -> None:
    """Held messages do not count; when they are returned, the queue is too long, and its head is dropped."""
    await limit(a, "1, NULL", overflow="drop-head")
    await a.commit(Share(5, free="1"))
    (row,) = await a.lease((5, 1))
    await a.commit(Share(5, free="1"))
    assert len(await ready(a)) == 1
    await a.give_back((5, row["number"], "1"))
    assert [row["number"] for row in await a.free(5)] == [row["number"] + 1]


async def test_a_node_has_no_room_for_what_it_returns(a: Session, b: Session) -> None:
    """Whatever room it told before, what it returns to a full queue is too much."""
    await limit(a, "1, NULL", overflow="drop-head")
    await a.commit(Share(5, free="1"))
    await b.value(ROOM, b.node, b.epoch)
    (row,) = await b.lease((5, 1), able=[9])
    await a.commit(Share(5, free="1"))
    await b.give_back((5, row["number"], "1"))
    assert [row["number"] for row in await a.free(5)] == [row["number"] + 1]


async def test_consumers_that_leave_take_their_room_along(a: Session, b: Session) -> None:
    """Messages that waited for them then exceed the limit."""
    await limit(a, "1, NULL", overflow="drop-head")
    await b.value(ROOM, b.node, b.epoch)
    await a.commit(Share(5, free="11"))
    assert await ready(a) == ["11"]
    await b.value("SELECT consumer_remove($1, $2, 5)", b.node, b.epoch)
    assert await ready(a) == ["01"]


async def test_consumers_that_wait_make_room(a: Session, b: Session) -> None:
    """A full queue takes as many messages more as consumers of any node have room for; what they got is no room."""
    await limit(a, "1, NULL", overflow="reject-publish")
    await b.value(ROOM, b.node, b.epoch)
    assert (await a.commit(Share(5, free="1111")))["refused"] == {1: "0011"}
    assert [row["bits"] for row in await b.lease((5, 9), able=[3])] == ["1100"]
    assert (await a.commit(Share(5, free="1111")))["refused"] == {1: "0011"}
    await b.lease((5, 0), able=[0])
    assert (await a.commit(Share(5, free="1")))["refused"] == {1: "1"}
    await b.value("SELECT consumer_remove($1, $2, 5)", b.node, b.epoch)
    assert await ready(a) == ["1100"]


async def test_bytes_do_not_count_for_consumers_that_wait(a: Session, b: Session) -> None:
    """Messages that waiting consumers take at once may be larger than the queue."""
    await limit(a, "NULL, 5", overflow="reject-publish")
    await b.value(ROOM, b.node, b.epoch)
    await b.lease((5, 1), able=[2])
    assert (await a.commit(Share(5, free="11", sizes=(9, 9))))["refused"] == {}
    assert (await a.commit(Share(5, free="1", sizes=(9,))))["refused"] == {1: "1"}


async def test_what_its_node_delivers_at_once_is_taken(a: Session) -> None:
    """A full queue refuses the last of the free messages, and dead-letters them if its overflow says so."""
    await limit(a, "1, NULL", overflow="reject-publish-dlx")
    row = await a.commit(Share(5, mine="11010", free="00101"))
    assert row["refused"] == {1: "00001"}
    assert [row["bits"] for row in await a.held()] == ["11010"]
    assert await ready(a) == ["00100"]
    assert await a.value("SELECT refused FROM batch") == '[[1, "00001", true]]'
    assert (await a.commit(sequence=1))["refused"] == {1: "00001"}  # the same call again


async def test_an_atomic_call_is_taken_completely_or_not_at_all(a: Session) -> None:
    """The error names what full queues refuse; the call has no effect on any table."""
    await limit(a, "2, NULL", overflow="reject-publish")
    number = (await a.commit(Share(6, mine="1")))["number"]
    with pytest.raises(asyncpg.PostgresError) as raised:
        await a.commit(
            Share(5, free="111"), Share(7, free="1"), settle=[(6, number, "1")], used=[("p", 1, 3)], atomic=True
        )
    assert (raised.value.sqlstate, raised.value.detail) == ("SQ004", '[[1, "001", false]]')
    assert await ready(a) == await ready(a, 7) == []
    assert len(await a.held()) == await a.value("SELECT count(*) FROM batch") == 1
    assert await a.value("SELECT count(*) FROM producer_run") == 0
    assert (await a.commit(Share(5, free="11"), settle=[(6, number, "1")], atomic=True))["refused"] == {}


async def test_room_that_is_gone_lets_messages_be_dropped(a: Session, b: Session) -> None:
    """Nothing is dropped before a consumer that waits; when it says that it has no room, the head goes."""
    await limit(a, "0, NULL", overflow="drop-head")
    await a.commit(Share(5, free="1"))
    assert await ready(a) == []
    await b.value(ROOM, b.node, b.epoch)
    await b.lease((5, 1), able=[2])
    await a.commit(Share(5, free="111"))
    assert await ready(a) == ["011"]
    await b.lease((5, 0), able=[0])
    assert await ready(a) == []
    await b.value("SELECT keep($1, $2)", b.node, b.epoch)


async def test_a_time_to_live_of_nothing_needs_a_consumer(a: Session, b: Session) -> None:
    """Such messages are dropped by the commit, unless some node has a consumer of the queue."""

    async def publish() -> None:
        a.sequence += 1
        arguments = (a.node, a.epoch, a.sequence, [b"part"], [6], [3], [30], [bits("000")], [bits("111")], [9], [None])
        await a.value(
            "SELECT commit($1, $2, $3, true, false, $4, $5, $6, $7, $8, $9, $10, $11,"
            " '{}', '{}', '{}', '{}', '{}', '{}', '{6}', '{5}', $12)",
            *arguments, [bits("101")],
        )  # fmt: skip

    await publish()
    assert await ready(a, 6) == ["010"]
    await b.value(ROOM, b.node, b.epoch)
    await publish()
    assert await ready(a, 6) == ["010", "111"]


async def test_an_older_schema_gets_the_new_functions(a: Session) -> None:
    """While no node is a member, functions are replaced whose arguments and results have changed."""
    body = "RETURNS int LANGUAGE sql AS 'SELECT 1'"
    await a.value("DROP FUNCTION consumers")
    await a.value(f"CREATE FUNCTION consumers(p_level bigint[]) {body}")
    await a.value(f"CREATE FUNCTION lease(text, bigint, bigint[], int[], bigint[], boolean) {body}")
    await a.value("UPDATE cluster SET digest = 'older'")
    await a.value("SELECT leave($1, $2)", a.node, a.epoch)
    await install(a.connection, await a.value("SELECT current_schema()"))
    await a.join("a")
    assert await a.lease((5, 1)) == []
    assert (await a.rows("SELECT * FROM consumers('{5}')"))[0]["room"] == 0
