"""A cluster in which nothing happens writes nothing but its heartbeats, and leaves no rows for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.sql_session import Sessions, Share
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

BEATS = 24


@pytest.mark.fault
def test_an_idle_cluster_uses_transaction_ids_for_its_heartbeats_alone(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Also while consumers wait, and queues have limits: whoever looks for work and finds none writes nothing."""

    def figures() -> tuple[int, int]:
        beats, used = postgres.sql("SELECT sum(beats), pg_snapshot_xmax(pg_current_snapshot()) FROM slotmq.beat").split(
            "|"
        )
        return int(beats), int(used)

    with Nodes(tmp_path, postgres.url, "slotmq", "a", "b", lease_ms=1500) as nodes:
        for name in "ab":
            channel = nodes.channel(name, confirms=True)
            channel.queue_declare("plain", durable=True)
            channel.queue_declare("limited", durable=True, arguments={"x-max-length": 10, "x-message-ttl": 60_000})
            channel.basic_publish("", "plain", b"taken", mandatory=True)
            for queue in ("plain", "limited"):
                channel.basic_consume(queue, lambda *_: None, auto_ack=True)
        seen: list[tuple[int, int]] = []

        def is_idle() -> bool:  # what was published is settled and forgotten at first; autovacuum may come at any time
            began = figures()
            wait_until(lambda: figures()[0] - began[0] >= BEATS, f"{BEATS} beats")
            beats, used = (now - then for now, then in zip(figures(), began, strict=True))
            seen.append((beats, used))
            return used <= beats + 2

        assert any(is_idle() for _ in range(5)), f"heartbeats, and transaction ids meanwhile: {seen}"


async def test_results_of_ended_epochs_do_not_pile_up(sessions: Sessions) -> None:
    """A node that joins again and again leaves what its last epoch needs; names that never come again leave little."""
    b = await sessions("b")
    await b.commit(Share(1, free="1"))
    a = await sessions("a")
    for _ in range(5):
        for _ in range(4):
            await a.commit(Share(1, free="1"))
        assert await b.count_out(a)
        assert await b.value("SELECT count(*) FROM batch WHERE node = 'a'") <= 3
        await a.join("a")
    await b.rows(
        "INSERT INTO batch (node, epoch, sequence, number, ring, synchronous) "
        "SELECT 'pod-' || i, -i, 1, -i, 0, true FROM generate_series(1, 1000) i"
    )
    assert await b.count_out(a)
    assert await b.value("SELECT count(*) FROM batch") <= 300 + 4
    await b.rows("DELETE FROM batch WHERE number < 0")


async def test_uses_of_queues_that_are_gone_do_not_stay_for_ever(sessions: Sessions) -> None:
    """A node that was late may tell of a queue after its deletion was swept."""
    a, b = await sessions("a"), await sessions("b")
    for level, age_ms in ((1, 4_294_968_000), (2, 4_294_000_000)):
        await b.rows("INSERT INTO queue_use (level, used_ms) VALUES ($1, now_ms() - $2)", level, age_ms)
    assert await b.count_out(a)
    assert [row["level"] for row in await b.rows("SELECT level FROM queue_use")] == [2]
