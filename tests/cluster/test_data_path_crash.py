"""The data path over a PostgreSQL that crashes before it has written what it committed asynchronously."""

from __future__ import annotations

import pytest

from broker.cluster import leases
from broker.cluster.database import Database
from broker.cluster.schema import FUNCTION_VERSION
from tests.cluster.members import until
from tests.cluster.path_node import PathNode, PathQueue, TestPublisher
from tools.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.fault,
    pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones"),
]
LEVEL = 7


async def test_what_was_acked_stays_acked(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database forgets the acks; the node sends them again, and nothing comes twice."""
    monkeypatch.setattr(leases, "LOOK_S", 3600)  # a lease would have the acks written
    postgres.sql("ALTER SYSTEM SET wal_writer_delay = '10s'")
    postgres.restart()
    database = Database(postgres.url, "a", schema=schema)
    await database.open()
    joined = await database.join("", FUNCTION_VERSION)
    database.begin_epoch(joined.epoch, joined.generation)
    node = PathNode(database)
    queue, publisher = PathQueue(node, LEVEL), TestPublisher()
    node.publish([queue], [b"1", b"2", b"3"], publisher)
    await until(lambda: publisher.confirmed == 3)
    consumer = queue.add(3)
    await until(lambda: consumer.got == [b"1", b"2", b"3"] and not queue.level.demand.backlog)
    queue.settle(consumer, 2)
    await node.path.drain()
    rows = f"""SELECT bit_count(bits) FROM "{schema}".slot"""
    assert postgres.sql(rows).strip() == "1"
    postgres.kill()
    postgres.start()
    assert postgres.sql(rows).strip() == "3"  # the acks are gone
    node.publish([queue], [b"4"], publisher)
    await until(lambda: publisher.confirmed == 4)
    consumer.prefetch = 10
    queue.credit(consumer)
    await until(lambda: len(consumer.got) >= 4)
    queue.settle(consumer)
    await node.path.drain()  # a call that waited for the database
    await node.path.drain()  # and what was settled again
    assert consumer.got == [b"1", b"2", b"3", b"4"]
    assert postgres.sql(rows).strip() == ""
    await node.close()
    await database.close()
