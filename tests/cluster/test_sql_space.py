"""The ring of chunk tables: taking the next one, emptying old ones, and copying survivors forward."""

from __future__ import annotations

import asyncio

from tests.cluster.invariants import violations
from tests.cluster.sql_session import Session, Sessions, Share
from tests.deadline import wait_until_async

SMALL_BYTES = 64 * 1024


async def turn(session: Session, limit_bytes: int = SMALL_BYTES, copy_bytes: int = 1 << 20) -> str | None:
    """Let a node look after the ring once."""
    done: str | None = await session.value(
        "SELECT turn_ring($1, $2, $3, $4)", session.node, session.epoch, limit_bytes, copy_bytes
    )
    return done


async def filled(session: Session, level: int = 5) -> int:
    """Commit calls until the next table is taken; return the last number in the full one."""
    while True:
        done = await session.commit(Share(level, free="11"), record_bytes=SMALL_BYTES // 2)
        if await turn(session):
            return int(done["number"])


async def settle_all(session: Session, level: int = 5, but: int = 0) -> None:
    """Lease and settle all messages of a level, except those of one slot, which stay leased."""
    rows = await session.lease((level, 10_000))
    await session.commit(settle=[(r["level"], r["number"], r["bits"]) for r in rows if r["number"] != but])


async def records(session: Session, ring: int) -> int:
    """Return how many records a table has."""
    return int(await session.value(f"SELECT count(*) FROM chunk_{ring}"))


async def test_a_full_table_is_followed_by_the_next_and_emptied_when_all_is_settled(a: Session) -> None:
    """Space comes back whole tables at a time, and an emptied table is used again."""
    await filled(a)
    assert await a.value("SELECT ring FROM cluster") == 1
    assert await turn(a, copy_bytes=0) is None
    await settle_all(a)
    assert await turn(a) == "emptied chunk_0"
    assert await records(a, 0) == 0
    await filled(a)
    assert await a.value("SELECT ring FROM cluster") == 0


async def test_the_ring_grows_when_every_table_is_in_use(a: Session) -> None:
    """A backlog takes another table, and nothing waits."""
    for _ in range(3):
        await filled(a)
        await turn(a, copy_bytes=0)
    assert await a.value("SELECT ring FROM cluster") == 3
    assert await a.value("SELECT count(*) FROM ring WHERE used") == 4


async def test_a_table_is_not_emptied_while_a_call_writes_to_it(sessions: Sessions) -> None:
    """A call that took the table before it was followed keeps it: the lock is refused at once, and its slot counts."""
    a, b, c = [await sessions(name) for name in "abc"]
    flight = await b.in_flight()
    number = (await b.commit(Share(7, free="1")))["number"]
    await filled(a)
    await settle_all(a)
    assert await turn(a) == "chunk_0 is in use"
    await flight.commit()
    assert await turn(a, copy_bytes=0) is None
    assert await c.value("SELECT count(*) FROM chunk_0 WHERE number = $1", number) == 1


async def test_a_call_that_commits_while_the_table_is_locked_keeps_it(sessions: Sessions) -> None:
    """The slots are looked at again after the lock, in a newer snapshot than the one of the first look."""
    a, b, c, watch = [await sessions(name) for name in ("a", "b", "c", "watch")]
    flight = await b.in_flight()
    await b.commit(Share(7, free="1"))
    await filled(a)
    await settle_all(a)
    await c.value("SET lock_timeout = 0")
    emptying = asyncio.create_task(c.value("SELECT empty_table(0, 1, 0)"))
    await wait_until_async(lambda: watch.sees_blocked(b, c), "the table's lock is waited for")
    await flight.commit()
    assert await emptying is None
    assert await records(a, 0)


async def test_a_backup_delays_only_the_emptying(sessions: Sessions) -> None:
    """While a backup has locked all tables, calls continue, the ring grows, and nothing waits for the backup."""
    a, backup = await sessions("a"), await sessions("backup")
    await filled(a)
    await settle_all(a)
    flight = await backup.in_flight()
    await backup.rows("SELECT * FROM chunk_0 LIMIT 1")
    assert await turn(a) == "chunk_0 is in use"
    await filled(a)
    assert await a.value("SELECT ring FROM cluster") == 2
    await flight.rollback()
    assert "emptied chunk_0" in (await turn(a) or "")


async def test_few_survivors_are_copied_forward(a: Session, b: Session) -> None:
    """Records with an unsettled message move to the current table, for all rows of the slot; then the old one goes."""
    number = (await a.commit(Share(5, mine="1000", free="0111"), Share(6, free="1")))["number"]
    await b.lease((5, 1))
    before = await a.value("SELECT bytes FROM chunk_0 WHERE number = $1", number)
    await filled(a, level=8)
    await settle_all(a, level=8)
    assert await turn(a, copy_bytes=4) is None
    assert await turn(a) == "copied 1 chunks of chunk_0"
    assert await a.value("SELECT bytes FROM chunk_1 WHERE number = $1", number) == before
    assert {row["ring"] for row in await a.rows("SELECT ring FROM slot")} == {1}
    found = await a.rows("SELECT * FROM locate('{5,6,9}', $1)", [number, number, number])
    assert [(row["level"], row["ring"]) for row in found] == [(5, 1), (6, 1)]
    assert await turn(a) == "emptied chunk_0"


async def test_bits_that_move_while_survivors_are_copied_keep_their_records(a: Session, b: Session) -> None:
    """A lease in flight would copy the old place into its row: copying waits for it, or comes again later."""
    await a.commit(Share(5, free="1111"))
    await filled(a, level=8)
    await settle_all(a, level=8)
    flight = await b.in_flight()
    await b.value("SELECT lock_levels('{5}')")  # a lease that has looked at nothing yet
    assert await turn(a) == "chunk_0 is in use"
    await b.lease((5, 2))
    assert await turn(a) == "chunk_0 is in use"
    await flight.commit()
    assert await turn(a) == "copied 1 chunks of chunk_0"
    assert {row["ring"] for row in await a.rows("SELECT ring FROM slot")} == {1}


async def test_one_node_at_a_time_looks_after_the_ring(a: Session, b: Session) -> None:
    """A second node does nothing while the first is at it."""
    await filled(a)
    await settle_all(a)
    flight = await a.in_flight()
    assert await turn(a) == "emptied chunk_0"
    assert await turn(b) is None
    await flight.commit()


async def test_records_of_a_megabyte_are_stored_as_they_are(a: Session) -> None:
    """A part is stored outside the row and not compressed, so that reading costs no more than its bytes."""
    done = await a.commit(Share(5, free="1"), record_bytes=1 << 20)
    stored = await a.value("SELECT pg_column_size(bytes) FROM chunk_0 WHERE number = $1", done["number"])
    assert stored == 1 << 20


async def test_lost_records_are_a_violation(a: Session) -> None:
    """The checker tells of a slot whose records are gone."""
    number = (await a.commit(Share(5, free="1")))["number"]
    await a.value("TRUNCATE chunk_0")
    assert await violations(a.connection) == [f"records are lost: level=5, number={number}, ring=0"]
    await a.value("DELETE FROM slot")
