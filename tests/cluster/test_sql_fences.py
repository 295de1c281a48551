"""The fence in PostgreSQL: what a node does as an epoch that has ended is refused, and its last call counts."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cluster.sql_session import Session, Sessions, Share
from tests.deadline import wait_until_async

FUNCTIONS = """
SELECT p.proname, p.pronargs FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = current_schema() AND p.prokind = 'f' AND p.proargnames[1:2] = '{p_node,p_epoch}' ORDER BY p.proname
"""
NOT_FENCED = {
    "count_out",  # its fence follows the look at the other's beats
    "free_rows",  # of a node that was counted out by its caller
    "come_back",  # it tells whether the epoch stands
    "leave",  # does nothing as another epoch
    "hold_row",  # within others
    "report",  # changes the beat of its own epoch only
}


async def functions(session: Session) -> list[tuple[str, int]]:
    """Return the functions that a node calls as its epoch, with the numbers of their parameters."""
    rows = await session.rows(FUNCTIONS)
    return [(row["proname"], row["pronargs"]) for row in rows if row["proname"] not in NOT_FENCED]


async def outcome(session: Session, name: str, count: int, node: str, epoch: int) -> str:
    """Return the SQLSTATE of a call with null for all other parameters, "" if it succeeds."""
    places = ", ".join(["$1", "$2", *["NULL"] * (count - 2)])
    transaction = await session.in_flight()
    try:
        await session.connection.fetch(f"SELECT * FROM {name}({places})", node, epoch)
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    finally:
        await transaction.rollback()
    return ""


async def test_every_function_refuses_an_epoch_that_has_ended(a: Session, b: Session) -> None:
    """A node that was counted out, also when its name has joined again, and a node that never joined."""
    old = a.epoch
    assert await b.count_out(a)
    found = await functions(b)
    assert len(found) > 10
    for name, count in found:
        assert await outcome(b, name, count, "a", old) == "SQ001", name
    await a.join("a")
    for name, count in found:
        assert await outcome(b, name, count, "a", old) == "SQ001", f"{name}, after a joined again"
        assert await outcome(b, name, count, "nobody", b.epoch) == "SQ001", name
        assert await outcome(b, name, count, "b", b.epoch) != "SQ001", name


@pytest.mark.parametrize("observer", ["b", "0"])  # members are locked in the order of their names
@pytest.mark.parametrize("settles", [False, True])
async def test_counting_out_frees_what_a_commit_in_flight_did(sessions: Sessions, settles: bool, observer: str) -> None:
    """Whatever a call of the dead node has leased to it, or settled, counts when it commits."""
    a, b, other = await sessions("a"), await sessions(observer), await sessions(observer)
    first = await a.commit(Share(1, free="00", mine="11"))
    transaction = await a.in_flight()
    await a.commit(Share(2, free="00", mine="11"), settle=[(1, first["number"], "10")] if settles else [])
    counting = asyncio.create_task(b.count_out(a))

    async def waits() -> bool:
        return await other.sees_blocked(a, b)

    await wait_until_async(waits, "the count-out waits for the call")
    await transaction.commit()
    assert await counting
    assert [row["bits"] for row in await b.free(1)] == ["01" if settles else "11"]
    assert [(row["bits"], row["seen"]) for row in await b.free(2)] == [("11", "11")]
