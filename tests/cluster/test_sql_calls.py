"""The functions of the data path in PostgreSQL: commit, lease, give_back, purge and the counts of limits."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cluster.sql_session import Session, Sessions, Share, ones
from tests.deadline import wait_until_async

# ---- commit ----------------------------------------------------------------------------------------------------------


async def test_a_call_makes_a_slot_per_level(a: Session) -> None:
    """Messages for the node's consumers are its own, the rest is free; the slot's number has the records."""
    done = await a.commit(Share(5, mine="1100", free="0011"), Share(6, free="11"), Share(7, mine="0", free="0"))
    assert done["refused"] == {}
    rows = await a.rows("SELECT * FROM slot ORDER BY level, holder")
    assert [(row["level"], row["holder"], row["bits"]) for row in rows] == [
        (5, "", "0011"), (5, "a", "1100"), (6, "", "11"),
    ]  # fmt: skip
    assert {row["number"] for row in rows} == {done["number"]}
    assert await a.value(f"SELECT bytes FROM chunk_{done['ring']} WHERE number = $1", done["number"])


async def test_the_same_call_again_changes_nothing_and_has_the_same_answer(a: Session) -> None:
    """A call that is sent again under its key returns the stored result, also one that a full queue cut."""
    await a.value("SELECT set_level(6, '/', NULL, 1, NULL, 'reject-publish')")
    first = await a.commit(Share(5, free="111"), Share(6, free="11"))
    before = await a.rows("SELECT * FROM slot ORDER BY level")
    again = await a.commit(Share(5, free="111"), Share(6, free="11"), sequence=1)
    assert first == again
    assert first["refused"] == {2: "01"}
    assert await a.rows("SELECT * FROM slot ORDER BY level") == before
    assert (await a.commit(Share(5, free="1")))["number"] > first["number"]


async def test_the_same_call_in_flight_twice_is_committed_once(sessions: Sessions) -> None:
    """A call that is sent again while the first one still runs waits for it, and has its answer."""
    a, again = await sessions("a"), await sessions("a")
    flight = await a.in_flight()
    first = await a.commit(Share(5, free="111"), sequence=7)
    waiting = asyncio.create_task(again.commit(Share(5, free="111"), sequence=7))
    watch = await sessions("watch")
    await wait_until_async(lambda: watch.sees_blocked(a, again), "the second call waits")
    await flight.commit()
    assert await waiting == first
    assert len(await a.free(5)) == 1


async def test_settled_messages_leave_and_an_empty_row_is_deleted(a: Session) -> None:
    """A settlement clears bits of the node's own row, together with what the same call publishes."""
    number = (await a.commit(Share(5, mine="1110")))["number"]
    await a.commit(Share(9, free="1"), settle=[(5, number, "1000")])
    assert [row["bits"] for row in await a.held()] == ["0110"]
    await a.commit(settle=[(5, number, "0110")], synchronous=False)
    assert await a.held() == []
    assert await a.free(9)


async def test_a_row_whose_bits_are_returned_and_settled_at_once_is_deleted(sessions: Sessions) -> None:
    """A settlement that waits for a return of the row's other messages leaves no empty row."""
    a, returning, watch = await sessions("a"), await sessions("a"), await sessions("watch")
    number = (await a.commit(Share(5, mine="11")))["number"]
    flight = await returning.in_flight()
    await returning.give_back((5, number, "10"))
    settling = asyncio.create_task(a.commit(settle=[(5, number, "01")]))
    await wait_until_async(lambda: watch.sees_blocked(returning, a), "the settlement waits")
    await flight.commit()
    await settling
    assert await a.held() == []
    assert [row["bits"] for row in await a.free(5)] == ["10"]


async def test_only_the_holder_settles(a: Session, b: Session) -> None:
    """A settlement of a message that another node has, or that is free, clears nothing."""
    number = (await a.commit(Share(5, mine="10", free="01")))["number"]
    await b.commit(settle=[(5, number, "11")])
    assert await a.value("SELECT sum(bit_count(bits)) FROM slot") == 2


async def test_a_node_that_was_counted_out_calls_nothing(a: Session, b: Session) -> None:
    """Every function of a node that is not a member raises SQ001, and changes nothing."""
    number = (await a.commit(Share(5, mine="11")))["number"]
    assert await b.count_out(a)
    before = await b.rows("SELECT * FROM slot")
    refused = [
        lambda: a.commit(Share(5, free="1")),
        lambda: a.commit(settle=[(5, number, "11")]),
        lambda: a.lease((5, 1)),
        lambda: a.give_back((5, number, "11")),
        a.held,
        a.beat,
        lambda: a.count_out(b),
        lambda: a.value("SELECT purge($1, $2, '{5}')", a.node, a.epoch),
        lambda: a.value("SELECT sweep($1, $2, '{5}')", a.node, a.epoch),
        lambda: a.value("SELECT recount($1, $2, '{5}')", a.node, a.epoch),
        lambda: a.value("SELECT turn_ring($1, $2)", a.node, a.epoch),
        lambda: a.value("SELECT forget($1, $2, 1, 1)", a.node, a.epoch),
        lambda: a.value("SELECT consumer_add($1, $2, 5, false)", a.node, a.epoch),
        lambda: a.value("SELECT consumer_remove($1, $2, 5)", a.node, a.epoch),
        lambda: a.value("SELECT producer_claim($1, $2, 'p')", a.node, a.epoch),
        lambda: a.value("SELECT producer_release($1, $2, 'p')", a.node, a.epoch),
        lambda: a.value("SELECT producer_runs($1, $2, 'p')", a.node, a.epoch),
        lambda: a.value("SELECT keep($1, $2)", a.node, a.epoch),
        lambda: a.value("SELECT lease_due($1, $2, 1)", a.node, a.epoch),
        lambda: a.value("SELECT lease_excess($1, $2)", a.node, a.epoch),
    ]
    for call in refused:
        with pytest.raises(asyncpg.PostgresError) as raised:
            await call()
        assert raised.value.sqlstate == "SQ001"
    assert await b.rows("SELECT * FROM slot") == before


# ---- lease and return ------------------------------------------------------------------------------------------------


async def test_a_lease_takes_the_lowest_free_messages(a: Session, b: Session) -> None:
    """A lease fills its room from the head, splits a slot where the room ends, and tells whether there are more."""
    first = (await a.commit(Share(5, free="0110"), Share(6, free="1")))["number"]
    second = (await a.commit(Share(5, free="1111")))["number"]
    rows = await b.lease((5, 3), (6, 5), (7, 1))
    assert [(row["level"], row["number"], row["bits"], row["more"]) for row in rows] == [
        (5, first, "0110", False), (5, second, "1000", True), (6, first, "1", False),
    ]  # fmt: skip
    assert [row["bits"] for row in await a.free(5)] == ["0111"]
    assert [row["bits"] for row in await b.lease((5, 2))] == ["0110"]
    assert [(row["bits"], row["more"]) for row in await b.lease((5, 1))] == [("0001", False)]
    assert [row["bits"] for row in await b.held()] == ["0110", "1111", "1"]


async def test_a_lease_takes_the_messages_of_so_many_rows(a: Session, b: Session) -> None:
    """A lease of many small rows stops after 256 of them and tells of the others, which the next one takes."""
    numbers = [(await a.commit(Share(5, free="1")))["number"] for _ in range(258)]
    rows = await b.lease((5, 300))
    assert [row["number"] for row in rows] == numbers[:256]
    assert [row["more"] for row in rows] == [False] * 255 + [True]
    assert [(row["number"], row["more"]) for row in await b.lease((5, 2))] == [
        (numbers[256], False),
        (numbers[257], False),
    ]


async def test_a_lease_that_ends_with_a_slot_knows_of_the_next(a: Session) -> None:
    """Room for exactly one slot: the row says whether another one is free."""
    for _ in range(2):
        await a.commit(Share(5, free="11"))
    assert [row["more"] for row in await a.lease((5, 2))] == [True]
    assert [row["more"] for row in await a.lease((5, 2))] == [False]


async def test_a_lease_begins_at_its_bound(a: Session) -> None:
    """The bound spares the rows before it; without the bound they are found."""
    first = (await a.commit(Share(5, free="1")))["number"]
    second = (await a.commit(Share(5, free="1")))["number"]
    assert [row["number"] for row in await a.lease((5, 9), after=second)] == [second]
    assert [row["number"] for row in await a.lease((5, 9))] == [first]


async def test_what_came_back_is_redelivered_and_counted(sessions: Sessions) -> None:
    """A return keeps which messages may have been delivered, and how often; a return of others changes neither."""
    a, b, c = [await sessions(name) for name in "abc"]
    number = (await a.commit(Share(5, free="1111")))["number"]
    await b.lease((5, 4))
    await b.give_back((5, number, "1100"), seen="1000", counts={0: 2})
    (row,) = await c.lease((5, 9))
    assert (row["bits"], row["seen"], row["counts"]) == ("1100", "1000", '{"0": 2}')
    await c.give_back((5, number, "1000"), seen="1000", counts={0: 3})
    await b.give_back((5, number, "0011"))
    (row,) = await a.lease((5, 9))
    assert (row["bits"], row["seen"], row["counts"]) == ("1011", "1000", '{"0": 3}')


async def test_an_old_count_does_not_come_back_with_another_message(a: Session, b: Session) -> None:
    """A row that once had a message does not overwrite that message's count when it returns others."""
    number = (await a.commit(Share(5, free="11")))["number"]
    await a.lease((5, 2))
    await a.give_back((5, number, "10"), counts={0: 1})
    await b.lease((5, 1))
    await b.give_back((5, number, "10"), counts={0: 2})
    await a.give_back((5, number, "01"), counts={0: 1})
    (row,) = await b.free(5)
    assert row["counts"] == '{"0": 2}'


async def test_nobody_returns_what_it_does_not_have(a: Session, b: Session) -> None:
    """A return of settled messages, and of another node's, frees nothing."""
    number = (await a.commit(Share(5, mine="11")))["number"]
    await b.give_back((5, number, "11"))
    await a.commit(settle=[(5, number, "10")])
    await a.give_back((5, number, "11"))
    assert [row["bits"] for row in await a.free(5)] == ["01"]


async def test_two_nodes_never_lease_the_same_message(sessions: Sessions) -> None:
    """A lease waits for one in flight, and then has what that left."""
    a, b, watch = [await sessions(name) for name in ("a", "b", "watch")]
    await a.commit(Share(5, free=ones(10)))
    flight = await a.in_flight()
    (mine,) = await a.lease((5, 6))
    waiting = asyncio.create_task(b.lease((5, 6)))
    await wait_until_async(lambda: watch.sees_blocked(a, b), "the second lease waits")
    await flight.commit()
    assert (mine["bits"], (await waiting)[0]["bits"]) == ("1111110000", "0000001111")


async def test_a_lease_does_not_wait_for_a_commit(a: Session, b: Session) -> None:
    """A lease finds what was committed before, while another call of the same level runs."""
    await a.commit(Share(5, free="1"))
    flight = await a.in_flight()
    await a.commit(Share(5, free="1"))
    assert len(await b.lease((5, 9))) == 1
    await flight.commit()
    assert len(await b.lease((5, 9))) == 1


# ---- purge, sweep, counts --------------------------------------------------------------------------------------------


async def test_a_purge_deletes_free_messages_only(a: Session) -> None:
    """Messages that a node holds stay; the answer counts the free ones, per level."""
    await a.commit(Share(5, mine="100", free="011"), Share(6, free="1"))
    counted = await a.rows("SELECT * FROM counts('{5,6,7}') ORDER BY level")
    assert [(row["messages"], row["bytes"]) for row in counted] == [(2, 20), (1, 10), (0, 0)]
    gone = await a.rows("SELECT * FROM purge($1, $2, '{5,7}')", a.node, a.epoch)
    assert [(row["level"], row["messages"]) for row in gone] == [(5, 2), (7, 0)]
    assert [row["bits"] for row in await a.held()] == ["100"]
    assert len(await a.free(6)) == 1


async def test_a_deleted_level_is_swept_in_pieces(a: Session, b: Session) -> None:
    """A sweep deletes rows of every holder and what was claimed, and passes over rows that a call has locked."""
    await a.value("SELECT set_level(5, '/', NULL, 9, NULL, 'drop-head')")
    number = (await a.commit(Share(5, free="1")))["number"]
    await a.lease((5, 1))
    for _ in range(3):
        await a.commit(Share(5, free="1"))
    flight = await a.in_flight()
    await a.commit(settle=[(5, number, "0")])  # locks the row
    swept = "SELECT sweep($1, $2, '{5}', 2)"
    assert [await b.value(swept, b.node, b.epoch) for _ in range(3)] == [False, False, False]
    await flight.rollback()
    assert await b.value(swept, b.node, b.epoch)
    assert await b.value("SELECT count(*) FROM slot") == 0
    assert await b.value("SELECT count(*) FROM level") == 0


# ---- limits ----------------------------------------------------------------------------------------------------------


async def test_reject_publish_is_exact(a: Session, b: Session) -> None:
    """A full queue takes what fits; leased messages count as delivered, and a return may exceed the limit."""
    await a.value("SELECT set_level(5, '/', NULL, 3, NULL, 'reject-publish')")
    assert (await a.commit(Share(5, free="11"), Share(6, free="1")))["refused"] == {}
    number = (await b.commit(Share(5, free="11")))["number"]
    assert [row["bits"] for row in await b.free(5)] == ["11", "10"]
    assert (await a.commit(Share(5, free="1")))["refused"] == {1: "1"}
    await b.lease((5, 2))
    assert (await a.commit(Share(5, free="111")))["refused"] == {1: "001"}
    await b.give_back((5, number - 1, "11"))
    assert await a.value("SELECT ready FROM level WHERE level = 5") == 5
    assert (await a.commit(Share(5, free="1")))["refused"] == {1: "1"}


async def test_reject_publish_by_bytes_is_exact(a: Session) -> None:
    """Sizes count message by message, when messages come and when some of a slot are leased."""
    await a.value("SELECT set_level(5, '/', NULL, NULL, 100, 'reject-publish')")
    assert (await a.commit(Share(5, free="111", sizes=(60, 30, 20))))["refused"] == {1: "001"}
    assert (await a.commit(Share(5, free="1", sizes=(11,))))["refused"] == {1: "1"}
    await a.lease((5, 1))
    assert await a.value("SELECT bytes FROM level WHERE level = 5") == 30
    assert (await a.commit(Share(5, free="11", sizes=(70, 1))))["refused"] == {1: "01"}
    gone = await a.rows("SELECT * FROM purge($1, $2, '{5}')", a.node, a.epoch)
    assert gone[0]["messages"] == 2
    assert await a.rows("SELECT ready, bytes FROM level") == [{"ready": 0, "bytes": 0}]


async def test_two_nodes_fill_a_queue_together_to_its_limit(sessions: Sessions) -> None:
    """A publish waits for the other node's call in flight before it counts."""
    a, b, watch = [await sessions(name) for name in ("a", "b", "watch")]
    await a.value("SELECT set_level(5, '/', NULL, 3, NULL, 'reject-publish')")
    flight = await a.in_flight()
    await a.commit(Share(5, free="11"))
    waiting = asyncio.create_task(b.commit(Share(5, free="11")))
    await wait_until_async(lambda: watch.sees_blocked(a, b), "the second publish waits")
    await flight.commit()
    assert (await waiting)["refused"] == {1: "01"}


async def test_levels_of_a_queue_share_its_limit(a: Session) -> None:
    """Levels with one counter are full together."""
    for level in (5, 6):
        await a.value(f"SELECT set_level({level}, '/', 5, 3, NULL, 'reject-publish')")
    assert (await a.commit(Share(5, free="11"), Share(6, free="11")))["refused"] == {2: "01"}


async def test_limits_that_come_later_count_what_is_there(a: Session) -> None:
    """A recount after the barrier makes the counter of a level with messages exact."""
    await a.commit(Share(5, free="1111", mine="0"))
    await a.value("SELECT set_level(5, '/', NULL, 5, NULL, 'reject-publish')")
    await a.value("SELECT recount($1, $2, '{5}')", a.node, a.epoch)
    assert (await a.commit(Share(5, free="11")))["refused"] == {1: "01"}
