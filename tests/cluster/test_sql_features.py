"""Consumers, producers and keepers in PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.cluster.sql_session import Session, Sessions, Share
from tests.deadline import wait_until_async

SINGLE_ACTIVE = "SELECT set_level(5, '/', NULL, NULL, NULL, NULL, true)"


async def add(session: Session, *, exclusive: bool = False) -> dict[str, Any]:
    """Add a consumer to level 5."""
    found = await session.rows("SELECT * FROM consumer_add($1, $2, 5, $3)", session.node, session.epoch, exclusive)
    return found[0]


async def remove(session: Session, count: int = 1) -> dict[str, Any]:
    """Remove consumers from level 5."""
    found = await session.rows("SELECT * FROM consumer_remove($1, $2, 5, $3)", session.node, session.epoch, count)
    return found[0]


# ---- consumers -------------------------------------------------------------------------------------------------------


async def test_consumers_of_all_nodes_are_counted(a: Session, b: Session) -> None:
    """The totals count every node, down to none."""
    assert [(await add(s))["total"] for s in (a, a, b)] == [1, 2, 3]
    found = await b.rows("SELECT * FROM consumers('{5,6}') ORDER BY level")
    assert [(row["total"], row["exclusive"], row["active_node"]) for row in found] == [
        (3, False, None),
        (0, False, None),
    ]
    assert [(await remove(a, 2))["total"], (await remove(b))["total"]] == [1, 0]


async def test_an_exclusive_consumer_is_alone(a: Session, b: Session) -> None:
    """It is refused beside others, and refuses others, on its own node as well."""
    assert (await add(a))["granted"]
    assert not (await add(b, exclusive=True))["granted"]
    assert not (await add(a, exclusive=True))["granted"]
    await remove(a)
    assert (await add(b, exclusive=True))["granted"]
    assert not (await add(a))["granted"]
    assert not (await add(b))["granted"]
    assert (await remove(b))["total"] == 0
    assert (await add(a))["granted"]


async def test_two_exclusive_consumers_at_once_are_one(sessions: Sessions) -> None:
    """The second request waits for the first, and is refused."""
    a, b, watch = [await sessions(name) for name in ("a", "b", "watch")]
    flight = await a.in_flight()
    assert (await add(a, exclusive=True))["granted"]
    waiting = asyncio.create_task(add(b, exclusive=True))
    await wait_until_async(lambda: watch.sees_blocked(a, b), "the second consumer waits")
    await flight.commit()
    assert not (await waiting)["granted"]


async def test_one_node_is_active_and_the_longest_waiting_follows(sessions: Sessions) -> None:
    """Only the active node leases; when it has no consumer left, or is counted out, the next one is active."""
    a, b, c = [await sessions(name) for name in "abc"]
    await a.value(SINGLE_ACTIVE)
    await a.commit(Share(5, free="1111"))
    assert [(await add(s))["active"] for s in (b, c, a)] == [True, False, False]
    assert await a.lease((5, 1)) == []
    assert len(await b.lease((5, 1))) == 1
    assert (await remove(b))["active_node"] == "c"
    assert await b.lease((5, 1)) == []
    assert len(await c.lease((5, 1))) == 1
    assert await a.count_out(c)
    assert (await a.rows("SELECT * FROM consumers('{5}')"))[0]["active_node"] == "a"
    assert len(await a.lease((5, 1))) == 1


async def test_a_level_whose_last_consumer_died_is_told_once(a: Session, b: Session) -> None:
    """Queues that delete themselves are found after a death, unless someone consumes again or the work is done."""
    await add(a)
    await b.value("SELECT consumer_add($1, $2, 6, false)", b.node, b.epoch)
    for level in (6, 7, 8):
        await a.value("SELECT consumer_add($1, $2, $3, false)", a.node, a.epoch, level)
    assert await b.count_out(a)
    orphans = "SELECT array_agg(o) FROM orphans() o"
    assert await b.value(orphans) == [5, 7, 8]
    await add(b)
    await b.value("SELECT orphans_done($1, $2, '{7}')", b.node, b.epoch)
    assert await b.value(orphans) == [8]


# ---- producers -------------------------------------------------------------------------------------------------------


async def claim(session: Session) -> str:
    """Claim a producer; return who has it."""
    return str(await session.value("SELECT producer_claim($1, $2, '/ p')", session.node, session.epoch))


async def runs(session: Session) -> list[tuple[int, int]]:
    """Return the used numbers of the producer."""
    found = await session.rows("SELECT * FROM producer_runs($1, $2, '/ p')", session.node, session.epoch)
    return [(row["first"], row["last"]) for row in found]


async def test_a_producer_has_one_node(a: Session, b: Session) -> None:
    """Another node gets it when it was released, or when its node is counted out."""
    assert [await claim(a), await claim(b), await claim(a)] == ["a", "a", "a"]
    await b.value("SELECT producer_release($1, $2, '/ p')", b.node, b.epoch)
    assert await claim(b) == "a"
    await a.value("SELECT producer_release($1, $2, '/ p')", a.node, a.epoch)
    assert await claim(b) == "b"
    assert await a.count_out(b)
    assert await claim(a) == "a"


async def test_used_numbers_travel_with_their_call_and_are_folded(a: Session, b: Session) -> None:
    """Runs are as durable as the messages of their call, and touching runs become one."""
    await claim(a)
    with pytest.raises(asyncpg.PostgresError) as raised:
        await runs(b)
    assert raised.value.sqlstate == "SQ003"
    await a.commit(Share(5, free="1"), used=[("/ p", 1, 4), ("/ q", 1, 9)])
    await a.commit(Share(5, free="1"), used=[("/ p", 9, 9), ("/ p", 5, 6), ("/ p", 2, 3)])
    assert await runs(a) == [(1, 6), (9, 9)]
    await a.commit(used=[("/ p", 7, 8)])
    assert await runs(a) == [(1, 9)]
    assert await a.value("SELECT count(*) FROM producer_run") == 2


# ---- keepers ---------------------------------------------------------------------------------------------------------


async def keep(session: Session, *levels: int) -> None:
    """Make a node the keeper of levels."""
    await session.value(
        "INSERT INTO keeper (level, node, epoch) SELECT s, $1, $2 FROM unnest($3::bigint[]) s",
        session.node, session.epoch, list(levels),
    )  # fmt: skip


async def kept(session: Session) -> list[int]:
    """Take the keeper's turn of a node, and return the levels that it keeps."""
    await session.rows("SELECT * FROM keep($1, $2)", session.node, session.epoch)
    found = await session.rows("SELECT level FROM keeper WHERE node = $1 ORDER BY level", session.node)
    return [row["level"] for row in found]


async def test_a_level_has_one_keeper(a: Session, b: Session) -> None:
    """The first node that finds something due keeps the level, another one when that is counted out."""
    await a.commit(Share(5, free="1", due_at=1), Share(6, free="1", due_at=1), Share(8, free="1"))
    assert await kept(a) == [5, 6]
    await a.commit(Share(6, free="1", due_at=1), Share(7, free="1", due_at=1))
    assert await kept(b) == [7]
    assert await b.count_out(a)
    assert await kept(b) == [5, 6, 7]


async def test_the_keeper_leases_what_is_due(a: Session, b: Session) -> None:
    """It gets whole rows whose time has come, of the levels that it keeps, and returns the rest with their time."""
    await keep(a, 5)
    number = (await b.commit(Share(5, free="111", due_at=100), Share(6, free="1", due_at=1)))["number"]
    due = "SELECT * FROM lease_due($1, $2, $3)"
    assert await a.rows(due, a.node, a.epoch, 99) == []
    (row,) = await a.rows(due, a.node, a.epoch, 100)
    assert (row["level"], row["number"], row["bits"], row["due_at"]) == (5, number, "111", 100)
    await a.give_back((5, number, "011"), due_at=200)
    assert await a.rows(due, a.node, a.epoch, 199) == []
    assert [row["bits"] for row in await a.rows(due, a.node, a.epoch, 200)] == ["011"]
    assert [row["bits"] for row in await a.held()] == ["111"]


async def test_the_keeper_leases_what_exceeds_a_limit(a: Session) -> None:
    """It gets the head of a queue that drops its head, by messages and by bytes, and nothing of one that rejects."""
    await a.value("SELECT set_level(5, '/', NULL, 3, NULL, 'drop-head', false, true)")
    await a.value("SELECT set_level(6, '/', NULL, NULL, 100, 'drop-head', false, true)")
    await a.value("SELECT set_level(7, '/', NULL, 1, NULL, 'reject-publish')")
    await keep(a, 5, 6, 7)
    excess = "SELECT * FROM lease_excess($1, $2)"
    await a.commit(Share(5, free="11"), Share(6, free="11", sizes=(60, 40)), Share(7, free="11"))
    assert await a.rows(excess, a.node, a.epoch) == []
    await a.commit(Share(5, free="1111"), Share(6, free="11", sizes=(1, 60)))
    found = await a.rows(excess, a.node, a.epoch)
    assert [(row["level"], row["bits"]) for row in found] == [(5, "11"), (5, "1000"), (6, "11")]
    assert await a.rows(excess, a.node, a.epoch) == []
    left = await a.rows("SELECT level, ready FROM level ORDER BY level")
    assert [(row["level"], row["ready"]) for row in left] == [(5, 3), (6, 2), (7, 1)]


async def test_the_highest_level_loses_its_head_first(a: Session) -> None:
    """Levels that share a counter lose together what exceeds the limit, not each of them."""
    for level in (5, 6):
        await a.value(f"SELECT set_level({level}, '/', 5, 2, NULL, 'drop-head', false, true)")
    await keep(a, 5, 6)
    await a.commit(Share(5, free="111"), Share(6, free="11"))
    found = await a.rows("SELECT * FROM lease_excess($1, $2)", a.node, a.epoch)
    assert [(row["level"], row["bits"]) for row in found] == [(5, "100"), (6, "11")]


async def test_the_keeper_leases_what_another_node_consumes_alone(a: Session, b: Session) -> None:
    """Head expiry does not wait for the single active consumer."""
    await a.value(SINGLE_ACTIVE)
    await add(b)
    await keep(a, 5)
    await a.commit(Share(5, free="1", due_at=1))
    assert await a.lease((5, 1)) == []
    assert len(await a.rows("SELECT * FROM lease_due($1, $2, 1)", a.node, a.epoch)) == 1
