"""An operator's statements in PostgreSQL: a check of free messages, and a lease of certain ones."""

from __future__ import annotations

from typing import Any

from tests.cluster.invariants import violations
from tests.cluster.sql_session import Session, Share, bits

END = 1 << 60


async def look(session: Session, number: int = 0, index: int = 0, last: int = END, limit: int = 99) -> list[Any]:
    """Return the bits of free messages of level 5, from a place on."""
    rows = await session.rows("SELECT * FROM look(5, $1, $2, $3, $4, 1000000)", number, index, last, limit)
    return [row["bits"] for row in rows]


async def hold(session: Session, *rows: tuple[int, str]) -> list[dict[str, Any]]:
    """Lease messages of level 5."""
    return await session.rows(
        "SELECT * FROM hold($1, $2, 5, $3, $4)",
        session.node,
        session.epoch,
        [number for number, _ in rows],
        [bits(text) for _, text in rows],
    )


async def test_a_look_begins_and_ends_at_any_message(a: Session) -> None:
    """It shows free messages in order, as many as are asked for, and leases none."""
    first = (await a.commit(Share(5, free="1111")))["number"]
    second = (await a.commit(Share(5, free="11"), Share(6, free="1")))["number"]
    assert await look(a) == ["1111", "11"]
    assert await look(a, limit=3) == ["1110"]
    assert await look(a, first, 3) == ["0001", "11"]
    assert await look(a, first, 4) == ["11"]
    assert await look(a, first, 3, limit=2) == ["0001", "10"]
    assert await look(a, last=first) == ["1111"]
    assert await look(a, second + 1) == []
    await a.lease((5, 2))
    assert await look(a) == ["0011", "11"]
    assert await a.value("SELECT newest_number()") >= second


async def test_only_what_is_free_can_be_held(a: Session, b: Session) -> None:
    """The second caller gets the rest; returned messages are unchanged."""
    number = (await a.commit(Share(5, free="1111")))["number"]
    assert [row["bits"] for row in await hold(b, (number, "0110"))] == ["0110"]
    assert [row["bits"] for row in await hold(a, (number, "1111"), (number + 1, "1"))] == ["1001"]
    assert await hold(a, (number, "1111")) == []
    assert await violations(a.connection) == []
    await b.give_back((5, number, "0110"))
    assert [(row["bits"], row["seen"]) for row in await a.free(5)] == [("0110", None)]


async def test_what_is_held_keeps_its_marks_and_is_not_counted(a: Session, b: Session) -> None:
    """Delivery counts and marks move with the messages, and so does their part of a queue's limit."""
    await a.value("SELECT set_level(5, '/', NULL, 9, 100, 'drop-head')")
    number = (await a.commit(Share(5, free="1111", sizes=(1, 2, 3, 4))))["number"]
    await b.lease((5, 1))
    await b.give_back((5, number, "1000"), seen="1000", counts={0: 2})
    await hold(b, (number, "1001"))
    (row,) = await b.held()
    assert (row["bits"], row["seen"], row["counts"]) == ("1001", "1000", '{"0": 2}')
    assert await violations(a.connection) == []
    assert await a.rows("SELECT ready, bytes FROM level WHERE level = 5") == [{"ready": 2, "bytes": 5}]
    await b.give_back((5, number, "1001"))
    assert await a.rows("SELECT ready, bytes FROM level WHERE level = 5") == [{"ready": 4, "bytes": 10}]


async def test_messages_of_an_older_generation_are_marked(a: Session) -> None:
    """After the database went back they may have been delivered."""
    number = (await a.commit(Share(5, free="11")))["number"]
    await a.value("UPDATE cluster SET generation = generation + 1")
    rows = await a.rows("SELECT * FROM look(5, 0, 0, $1, 9, 1000)", END)
    assert [row["seen"] for row in rows] == ["11"]
    await hold(a, (number, "01"))
    assert [row["seen"] for row in await a.held()] == ["01"]


async def test_the_counts_of_a_queue_have_what_other_nodes_hold(a: Session, b: Session) -> None:
    """Free messages, consumers of others, and messages that others hold; those of the asking node it knows itself."""
    await a.commit(Share(5, free="1111"))
    await a.lease((5, 1))
    await b.lease((5, 2))
    await b.value("SELECT consumer_add($1, $2, 5, false)", b.node, b.epoch)
    counts = await a.rows("SELECT * FROM queue_counts('a', ARRAY[5, 6]::bigint[]) ORDER BY level")
    assert [tuple(row.values()) for row in counts] == [(5, 1, 1, 2), (6, 0, 0, 0)]
