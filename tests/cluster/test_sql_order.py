"""The order of leases: the bound from which a node looks on never passes a call that is in flight."""

from __future__ import annotations

import asyncpg
import pytest

from broker.cluster.demand import Demand
from tests.cluster.sql_session import Session, Sessions, Share, ones

LEVEL = 5
LEASES_MAX = 2000  # in which the locks are looked at once, but for a chance of 1e-17


async def look(session: Session, demand: Demand, room: int = 9) -> list[int]:
    """Lease as a node does, and return the numbers of the slots."""
    rows = await session.lease((LEVEL, room), after=demand.bound)
    if rows:
        demand.passed(rows[-1]["number"], rows[-1]["began"], rows[-1]["finished"])
    return [row["number"] for row in rows]


async def publish(session: Session, count: int = 1) -> int:
    """Commit a call with free messages, and return its number."""
    return int((await session.commit(Share(LEVEL, free=ones(count))))["number"])


async def begin(session: Session) -> asyncpg.transaction.Transaction:
    """Begin the transaction of a call; it has its id."""
    transaction = await session.in_flight()
    await session.value("SELECT fence($1, $2)", session.node, session.epoch)
    return transaction


async def test_the_bound_waits_for_a_call_in_flight(sessions: Sessions) -> None:
    """A call has its number and is not committed, while others are: its message comes before its node's next one."""
    a, b, c = await sessions("a"), await sessions("b"), await sessions("c")
    demand = Demand()
    flights = [await begin(session) for session in (c, b, a)]  # so no completed one has a higher id than that of A
    number = await publish(a)
    passed = await publish(b, 2)
    assert passed > number
    await flights[1].commit()
    assert await look(c, demand, room=1) == [passed]
    await flights[0].commit()
    assert await look(c, demand, room=1) == [passed]
    for _ in range(5):
        assert demand.bound <= number
        last = await publish(b)
        assert await look(c, demand) == [last]
    await flights[2].commit()
    following = await publish(a)
    assert await look(c, demand) == [number, following]
    assert demand.bound == passed  # the first one that waited
    last = await publish(b)
    assert await look(c, demand) == [last]
    assert demand.bound == following


async def test_a_transaction_of_others_holds_the_bound_for_a_while_only(sessions: Sessions) -> None:
    """Whatever else stays open in the server: the leases need not look at all the dead rows since then."""
    a, b, c, other = [await sessions(name) for name in ("a", "b", "c", "other")]
    demand = Demand()
    await publish(b)
    foreign = await other.in_flight()
    await other.value("SELECT pg_current_xact_id()::text")
    flight = await a.in_flight()
    number = await publish(a)
    ids = "FOR i IN 1..1100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP;"
    await b.connection.execute(f"DO $$ BEGIN {ids} END $$")
    assert await c.value("SELECT oldest_call()") == await a.value("SELECT pg_current_xact_id()::text::bigint")
    for _ in range(100):
        await publish(b)
        await look(c, demand)
        assert demand.bound <= number
    await flight.commit()
    assert number in await look(c, demand)
    for _ in range(LEASES_MAX):
        last = await publish(b)
        await look(c, demand)
        if demand.bound > number:
            break
    assert number < demand.bound < last
    await foreign.rollback()


async def test_a_call_has_its_transaction_id_before_its_number(a: Session, b: Session) -> None:
    """The fence assigns the id, and a call that it refuses takes no number."""
    flight = await a.in_flight()
    assert await a.value("SELECT pg_current_xact_id_if_assigned()::text") is None
    await a.value("SELECT fence($1, $2)", a.node, a.epoch)
    assert await a.value("SELECT pg_current_xact_id_if_assigned()::text") is not None
    await flight.commit()
    await b.count_out(a)
    before = await b.value("SELECT last_value FROM number_of_call")
    with pytest.raises(asyncpg.PostgresError, match="was counted out"):
        await publish(a)
    assert await b.value("SELECT last_value FROM number_of_call") == before
