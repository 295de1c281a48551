"""The functions about members in PostgreSQL: beats, joining, counting out, and what follows a fail-over."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from broker.cluster.schema import SCHEMA_VERSION, SchemaRefused, install
from tests.cluster.sql_session import Session, Sessions, Share
from tests.deadline import wait_until_async

MANY = 100_000

# ---- the schema ------------------------------------------------------------------------------------------------------


async def test_many_nodes_install_at_once(postgres_url: str, schema: str) -> None:
    """The first node creates the schema; the others find it."""
    opened = await asyncio.gather(*(Session.open(postgres_url, schema) for _ in range(4)))
    joined = await asyncio.gather(*(session.join(name) for session, name in zip(opened, "abcd", strict=True)))
    assert len({session.epoch for session in joined}) == 4
    for session in opened:
        await session.close()


async def test_a_newer_schema_is_refused(a: Session, schema: str) -> None:
    """An older broker neither changes a newer schema nor joins it."""
    await a.value("UPDATE cluster SET schema_version = $1, function_version = 2", SCHEMA_VERSION + 1)
    with pytest.raises(SchemaRefused):
        await install(a.connection, schema)
    with pytest.raises(asyncpg.PostgresError) as raised:
        await a.join("b")
    assert raised.value.sqlstate == "SQ002"


async def test_other_functions_wait_until_the_last_member_has_left(a: Session, schema: str) -> None:
    """A schema of the same version is replaced only while no one uses it."""
    await a.value("UPDATE cluster SET digest = 'another'")
    await install(a.connection, schema)
    assert await a.value("SELECT digest FROM cluster") == "another"
    await a.value("SELECT leave($1, $2)", a.node, a.epoch)
    await install(a.connection, schema)
    assert await a.value("SELECT digest FROM cluster") != "another"


# ---- joining and beating ---------------------------------------------------------------------------------------------


async def test_a_beat_counts_and_shows_all_members(a: Session, b: Session) -> None:
    """Every beat grows the node's count, and returns the members with what they reported."""
    await a.rows("SELECT * FROM beat($1, $2, 'amqp://a', 3, '{\"held\": 1}')", a.node, a.epoch)
    found = await b.beat()
    assert [(row["node"], row["beats"], row["applied"], row["url"]) for row in found] == [
        ("a", 1, 3, "amqp://a"), ("b", 1, 0, "amqp://here"),
    ]  # fmt: skip
    assert found[0]["reports"] == '{"held": 1}'
    assert {row["generation"] for row in found} == {1}


async def test_a_name_is_joined_once(a: Session) -> None:
    """A second join of a name is refused until its epoch was counted out, and then has a higher epoch."""
    with pytest.raises(asyncpg.PostgresError) as raised:
        await a.join("a")
    assert raised.value.sqlstate == "SQ003"
    assert await a.value("SELECT count_out(NULL, NULL, 'a', $1, 0)", a.epoch)
    former = a.epoch
    await a.join("a")
    assert a.epoch > former


# ---- counting out ----------------------------------------------------------------------------------------------------


async def test_what_a_dead_node_held_is_free_and_redelivered(a: Session, b: Session) -> None:
    """Its bits join the free rows as delivered before, with the counts that they had; nothing else changes."""
    await a.value("SELECT set_level(5, '/', NULL, 9, NULL, 'drop-head')")
    number = (await a.commit(Share(5, free="11110"), Share(6, mine="11")))["number"]
    await a.lease((5, 3))
    await a.give_back((5, number, "10000"), seen="10000", counts={0: 1})
    await a.lease((5, 1))
    await b.lease((5, 9))
    await b.give_back((5, number, "00010"))
    assert await b.count_out(a)
    assert await b.members_named() == ["b"]
    (row,) = await b.free(5)
    assert (row["bits"], row["seen"], row["counts"]) == ("11110", "11100", '{"0": 1}')
    assert [row["seen"] for row in await b.free(6)] == ["11"]
    assert await b.value("SELECT ready FROM level WHERE level = 5") == 4


async def test_a_node_that_beat_since_is_not_counted_out(a: Session, b: Session) -> None:
    """An observer that saw an older count of beats counts no one out, and no one is counted out twice."""
    await a.beat()
    assert not await b.count_out(a, beats=0)
    await a.beat()
    assert await b.count_out(a, beats=2)
    assert not await b.count_out(a, beats=2)


async def test_counting_out_waits_for_a_call_in_flight_and_frees_what_it_did(sessions: Sessions) -> None:
    """A call that runs while its node is counted out ends first: its messages are free, none are lost or doubled."""
    a, b, watch = [await sessions(name) for name in ("a", "b", "watch")]
    former = (await a.commit(Share(5, free="11")))["number"]
    flight = await a.in_flight()
    await a.lease((5, 1))
    number = (await a.commit(Share(5, mine="10", free="01")))["number"]
    counting = asyncio.create_task(b.count_out(a))
    await wait_until_async(lambda: watch.sees_blocked(a, b), "the observer waits")
    await flight.commit()
    assert await counting
    assert [(row["number"], row["bits"], row["seen"]) for row in await b.free(5)] == [
        (former, "11", "10"), (number, "11", "10"),
    ]  # fmt: skip
    assert await b.value("SELECT count(*) FROM slot WHERE holder <> ''") == 0


async def test_a_call_that_waited_for_the_count_out_is_refused(sessions: Sessions) -> None:
    """A call that arrives while its node is being counted out changes nothing."""
    a, b, watch = [await sessions(name) for name in ("a", "b", "watch")]
    flight = await b.in_flight()
    await b.count_out(a)
    waiting = asyncio.create_task(a.commit(Share(5, free="1")))
    await wait_until_async(lambda: watch.sees_blocked(b, a), "the call waits")
    await flight.commit()
    with pytest.raises(asyncpg.PostgresError) as raised:
        await waiting
    assert raised.value.sqlstate == "SQ001"
    assert await b.free(5) == []


@pytest.mark.parametrize("first", ["a", "b"])
async def test_two_nodes_that_count_each_other_out_leave_one(sessions: Sessions, first: str) -> None:
    """One of them wins, without a deadlock; the other is fenced."""
    a, b, again, watch = [await sessions(name) for name in ("a", "b", first, "watch")]
    one, other = (a, b) if first == "a" else (b, a)
    flight = await again.in_flight()
    await again.value("SELECT fence($1, $2)", again.node, again.epoch)  # a call that keeps the second one waiting
    losing = asyncio.create_task(other.count_out(one))
    await wait_until_async(lambda: watch.sees_blocked(again, other), "the other waits")
    winning = asyncio.create_task(one.count_out(other))

    async def waits_or_is_done() -> bool:
        return winning.done() or await watch.sees_blocked(other, one)

    await wait_until_async(waits_or_is_done, "the first has locked what it can")
    await flight.commit()
    results = await asyncio.gather(losing, winning, return_exceptions=True)
    assert not [result for result in results if isinstance(result, asyncpg.DeadlockDetectedError)]
    assert results.count(True) == 1
    assert len(await watch.members_named()) == 2


async def test_a_node_that_leaves_frees_what_it_held(a: Session, b: Session) -> None:
    """A node that leaves is not a member, and what it did not return is free."""
    await a.commit(Share(5, mine="11"))
    await a.value("SELECT leave($1, $2)", a.node, a.epoch)
    assert [row["bits"] for row in await b.lease((5, 9))] == ["11"]
    assert await b.members_named() == ["b"]


async def test_a_mailbox_goes_with_its_member(a: Session, b: Session) -> None:
    """Direct replies to a node that is gone are swept, also those that come later."""
    await b.commit(Share(-a.epoch, free="1"), Share(-b.epoch, free="1"))
    await a.lease((-a.epoch, 1))
    assert await b.count_out(a)
    assert await b.free(-a.epoch) == []
    await b.commit(Share(-a.epoch, free="1"))
    await b.value("SELECT turn_ring($1, $2)", b.node, b.epoch)
    assert [row["level"] for row in await b.rows("SELECT level FROM slot")] == [-b.epoch]


# ---- fail-over -------------------------------------------------------------------------------------------------------


async def come_back(session: Session, sequence: int | None, generation: int = 1, number: int = 0) -> dict[str, object]:
    """Return what a node learns on new connections."""
    arguments = session.node, session.epoch, sequence, number, generation
    found = await session.rows("SELECT * FROM come_back($1, $2, $3, $4, $5, false)", *arguments)
    return found[0]


async def test_a_node_that_finds_its_newest_batch_goes_on(a: Session, b: Session) -> None:
    """Nothing was lost: the generation stays, also for a node that committed nothing yet."""
    await a.commit(Share(5, free="1"))
    found = {"generation": 1, "is_member": True, "has_all": True, "was_moved": False}
    assert await come_back(a, a.sequence) == found
    assert await come_back(b, None) == found


async def test_a_missing_batch_grows_the_generation_once(a: Session, b: Session) -> None:
    """A database that went back in time: every node hears of it, and rows of before count as redelivered."""
    await a.commit(Share(5, free="11"), Share(7, free="11"))
    await b.lease((5, 1))
    assert await come_back(a, a.sequence + 1) == {
        "generation": 2, "is_member": True, "has_all": False, "was_moved": False,
    }  # fmt: skip
    assert (await come_back(b, 99))["generation"] == 2
    assert {row["generation"] for row in await b.beat()} == {2}
    (row,) = await a.lease((5, 9))
    assert (row["bits"], row["seen"]) == ("01", "01")
    assert [(row["bits"], row["seen"]) for row in await a.lease((7, 9))] == [("11", "11")]  # a whole slot
    await a.commit(Share(6, free="1"))
    assert (await a.lease((6, 9)))[0]["seen"] is None
    assert (await come_back(a, 99, generation=2))["generation"] == 3
    assert (await come_back(b, 99))["generation"] == 3  # a late one, of the first time


async def test_a_node_that_was_counted_out_begins_no_generation(a: Session, b: Session) -> None:
    """Its newest batch may be gone with its epoch."""
    await b.count_out(a)
    assert await come_back(a, 1) == {"generation": 1, "is_member": False, "has_all": True, "was_moved": False}


async def test_a_number_that_was_not_given_yet_tells_that_the_database_went_back(a: Session, b: Session) -> None:
    """The node knows it of another one, which may be gone; no one gets that number again."""
    number = (await a.commit(Share(5, free="1")))["number"]
    assert (await come_back(b, None, number=number))["has_all"]
    newest = await b.value("SELECT last_value FROM number_of_call") + 5
    assert not (await come_back(b, None, number=newest))["has_all"]
    assert (await come_back(a, a.sequence, generation=2, number=newest))["has_all"]
    assert (await a.commit(Share(5, free="1")))["number"] > newest


@pytest.mark.parametrize("changed", ["system_identifier", "timeline"])
async def test_another_server_continues_behind_a_gap_of_numbers(sessions: Sessions, changed: str) -> None:
    """The first node to see another server or timeline moves the numbers; each leaves a gap for what a crash lost."""
    a, b, watch = [await sessions(name) for name in ("a", "b", "watch")]
    number = (await a.commit(Share(5, free="1")))["number"]
    level = await a.value("SELECT nextval('level_number')")
    await a.value(f"UPDATE cluster SET {changed} = {changed} - 1")
    flight = await a.in_flight()
    assert (await come_back(a, a.sequence))["was_moved"]
    waiting = asyncio.create_task(come_back(b, None))
    await wait_until_async(lambda: watch.sees_blocked(a, b), "the second node waits")
    await flight.commit()
    assert not (await waiting)["was_moved"]
    moved = (await a.commit(Share(5, free="1")))["number"]
    assert number + 1_020_000 < moved < number + 1_020_100
    assert await b.value("SELECT nextval('level_number')") == level + 1024 * 1025


async def test_old_batches_are_forgotten_but_the_newest_stay(a: Session, b: Session) -> None:
    """A node keeps its newest call and its newest synchronous one; so does the count-out of a dead node."""
    for synchronous in (True, True, False, False):
        await a.commit(Share(5, free="1"), synchronous=synchronous)
    await a.value("SELECT forget($1, $2, 3, 2)", a.node, a.epoch)
    kept = "SELECT array_agg(sequence ORDER BY sequence) FROM batch WHERE node = 'a'"
    assert await a.value(kept) == [2, 3, 4]
    assert await b.count_out(a)
    assert await b.value(kept) == [2, 4]


async def test_a_node_may_have_any_number_of_queues(sessions: Sessions) -> None:
    """It is counted out with all that it holds, and its name joins again: no work needs a lock for each level."""
    a, b, again = await sessions("a"), await sessions("b"), await sessions("again")
    number = (await a.commit(Share(5, mine="1")))["number"]
    await a.value(
        "INSERT INTO slot SELECT s, $1, 'a', $2, 1, 0, 1, 10, NULL, '1' FROM generate_series(1, $3) s WHERE s <> 5",
        number, a.epoch, MANY,
    )  # fmt: skip
    await a.value(
        "INSERT INTO consumer (level, node, epoch, count, since) "
        "SELECT s, 'a', $1, 1, s FROM generate_series(1, $2) s",
        a.epoch, MANY,
    )  # fmt: skip
    assert await b.count_out(a)
    assert await b.value("SELECT count(*) FROM slot WHERE holder = ''") == MANY
    assert await b.value("SELECT count(*) FROM orphan") == MANY
    await again.join("a")
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    async with b.connection.transaction():
        await b.value("SELECT lock_levels(ARRAY(SELECT generate_series(1, $1)::bigint))", MANY)
        assert await b.value(locks) == 1024
    async with b.connection.transaction():
        await b.value("SELECT lock_levels(ARRAY(SELECT generate_series(2048, 2057)::bigint))")
        assert await b.value(locks) == 10  # the levels of one node do not share
