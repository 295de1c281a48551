"""The statements and dead rows that the shared store costs, whatever the number of messages."""

from __future__ import annotations

import pytest

from tests.cluster.sql_session import Session, Share, ones
from tools.postgres_server import PostgresServer


async def test_statements_do_not_grow_with_messages(shared_postgres: PostgresServer, schema: str) -> None:
    """A call of 1,000 messages, its lease and its settlement run the statements of calls of one message."""
    a = await (await Session.open(shared_postgres.url, schema)).join("a")
    await a.connection.execute("SET pg_stat_statements.track = 'all'")  # those inside of functions, too
    counted = []
    for count in (1, 1, 1000):  # the first round plans
        await a.value("SELECT public.pg_stat_statements_reset()")
        for _ in range(3):
            number = (await a.commit(Share(5, free=ones(count)), Share(6, mine=ones(count))))["number"]
            (row,) = await a.lease((5, count))
            assert row["bits"] == ones(count)
            await a.commit(settle=[(5, number, ones(count)), (6, number, ones(count))])
        counted.append(await a.value("SELECT sum(calls) FROM public.pg_stat_statements"))
    await a.close()
    assert counted[1] == counted[2]
    assert counted[2] < 3 * 80


async def test_a_call_leaves_no_dead_row_outside_of_slots(shared_postgres: PostgresServer, schema: str) -> None:
    """Under a long foreign transaction dead versions of a row that every call updates would pile up: there is none."""
    if int(shared_postgres.sql("SHOW server_version_num")) < 150_000:
        pytest.skip("PostgreSQL 14 counts later")
    a = await (await Session.open(shared_postgres.url, schema)).join("a")
    for _ in range(20):
        number = (await a.commit(Share(5, free="1"), Share(6, mine="1")))["number"]
        await a.lease((5, 1))
        await a.commit(settle=[(5, number, "1"), (6, number, "1")])
    await a.value("SELECT pg_stat_force_next_flush()")
    changed = await a.rows(
        "SELECT relname, n_tup_upd + n_tup_del AS changes FROM pg_stat_user_tables WHERE schemaname = $1 "
        "AND n_tup_upd + n_tup_del > 0", schema,
    )  # fmt: skip
    await a.close()
    assert [(row["relname"], row["changes"] <= 20 * 3) for row in changed if row["relname"] != "cluster"] == [
        ("slot", True)
    ]


async def test_plans_made_on_an_empty_table_suit_a_full_one(shared_postgres: PostgresServer, schema: str) -> None:
    """The rows that the functions read for a level do not grow with others', although their plans are cached."""
    a = await (await Session.open(shared_postgres.url, schema)).join("a")
    await a.connection.execute("SET pg_stat_statements.track = 'top'")
    await a.value("SELECT set_level(1, 'v', NULL, 100, NULL, 'drop-head')")

    async def work(number: int) -> None:
        await a.rows("SELECT * FROM counts($1)", [1])
        await a.rows("SELECT * FROM locate($1, $2)", [1], [number])
        await a.value("SELECT recount($1, $2, $3)", a.node, a.epoch, [1])
        await a.lease((1, 1))
        await a.give_back((1, number, "1"))
        await a.value("SELECT sweep($1, $2, $3)", a.node, a.epoch, [2])

    await work((await a.commit(Share(1, free="1")))["number"])
    for _ in range(5):
        await a.commit(*(Share(level, free="1") for level in range(3, 2003)))
    await a.value("SELECT public.pg_stat_statements_reset()")
    await work(1)
    read = await a.rows(
        "SELECT query, shared_blks_hit + shared_blks_read AS blocks FROM public.pg_stat_statements WHERE query ~ $1",
        "counts|locate|recount|lease|give_back|sweep",
    )
    await a.close()
    assert len(read) == 6
    assert [row for row in read if row["blocks"] > 100] == []


async def test_a_lease_begins_at_its_bound_beside_an_open_transaction(
    shared_postgres: PostgresServer, schema: str
) -> None:
    """The rows that were taken stay in the index as long as a transaction is open, and none of them is read again."""
    a = await (await Session.open(shared_postgres.url, schema)).join("a")
    b = await (await Session.open(shared_postgres.url, schema)).join("b")
    foreign = await Session.open(shared_postgres.url, schema)
    transaction = foreign.connection.transaction()
    await transaction.start()
    await foreign.value("SELECT pg_current_xact_id()")
    read, number = [], 0
    for count in (100, 100, 1000, 100):
        for session in (a, b):
            await session.connection.execute("SET pg_stat_statements.track = 'none'")
        for _ in range(count):
            number = (await a.commit(Share(5, free="1"), synchronous=False))["number"]
            await b.lease((5, 1), after=number)
            await b.commit(settle=[(5, number, "1")], synchronous=False)
        await b.connection.execute("SET pg_stat_statements.track = 'top'")
        await a.value("SELECT public.pg_stat_statements_reset()")
        for _ in range(10):
            await b.lease((5, 1), after=number + 1)
            last = (await a.commit(Share(5, free="1"), synchronous=False))["number"]
            await b.lease((5, 1), after=last)
        read.append(
            await a.value("SELECT sum(shared_blks_hit)::int FROM public.pg_stat_statements WHERE query ~ 'lease'")
        )
    await transaction.rollback()
    for session in (a, b, foreign):
        await session.close()
    assert read[3] < read[1] * 1.5, f"blocks of ten leases: {read}"


async def test_what_was_forgotten_is_not_looked_at_again(shared_postgres: PostgresServer, schema: str) -> None:
    """While a transaction stays open the rows of forgotten calls stay too, and a node forgets once a second."""
    a = await (await Session.open(shared_postgres.url, schema)).join("a")
    foreign = await Session.open(shared_postgres.url, schema)
    transaction = foreign.connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await foreign.value("SELECT count(*) FROM batch")
    for _ in range(200):
        await a.commit(synchronous=False)
    await a.value("SELECT forget($1, $2, 200, NULL)", a.node, a.epoch)
    await a.commit(synchronous=False)
    read = []
    for _ in range(2):
        await a.value("SELECT pg_stat_force_next_flush()")
        read.append(
            await a.value(
                "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = $1 AND indexrelname = 'batch_pkey'",
                schema,
            )
        )
        await a.value("SELECT forget($1, $2, 201, NULL, 200)", a.node, a.epoch)
    kept = await a.value("SELECT array_agg(sequence) FROM batch WHERE node = 'a'")
    await transaction.rollback()
    for session in (a, foreign):
        await session.close()
    assert kept == [201]
    assert read[1] - read[0] < 10
