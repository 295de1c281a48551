"""The data path of two nodes over PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from broker.cluster.database import Database
from broker.cluster.schema import FUNCTION_VERSION
from tests.cluster.members import until
from tests.cluster.path_node import PathNode, PathQueue, TestConsumer, TestPublisher

pytestmark = pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones")

LEVEL = 7


class Pair:
    """Two nodes with the same queue."""

    def __init__(self, databases: list[Database]) -> None:
        self.databases = databases
        self.node_a, self.node_b = (PathNode(database) for database in databases)
        self.queue_a, self.queue_b = PathQueue(self.node_a, LEVEL), PathQueue(self.node_b, LEVEL)


@pytest.fixture
async def pair(postgres_url: str, schema: str) -> AsyncIterator[Pair]:
    """Provide two nodes that have joined; no one counts them out."""
    databases = [Database(postgres_url, name, schema=schema) for name in "ab"]
    for database in databases:
        await database.open()
        joined = await database.join("", FUNCTION_VERSION)
        database.begin_epoch(joined.epoch, joined.generation)
    made = Pair(databases)
    yield made
    for node in (made.node_a, made.node_b):
        await node.close()
    for database in databases:
        await database.close()


async def rows_left(postgres_url: str, schema: str) -> int:
    """Count the rows of slots."""
    connection = await asyncpg.connect(postgres_url)
    try:
        return int(await connection.fetchval(f'SELECT count(*) FROM "{schema}".slot'))
    finally:
        await connection.close()


async def consume(queue: PathQueue, consumer: TestConsumer, count: int) -> None:
    """Ack everything until a consumer got this many messages."""

    def acked() -> bool:
        if consumer.held:
            queue.settle(consumer)
        return len(consumer.got) >= count

    await until(acked)
    queue.settle(consumer)


async def test_a_message_goes_from_one_node_to_the_other_and_leaves_nothing(
    pair: Pair, postgres_url: str, schema: str
) -> None:
    """Published on A and confirmed, delivered on B, acked, and gone from the table."""
    consumer, publisher = pair.queue_b.add(10), TestPublisher()
    pair.node_a.publish([pair.queue_a], [b"one", b"two"], publisher)
    await until(lambda: consumer.got == [b"one", b"two"])
    assert publisher.confirmed == 2
    pair.queue_b.settle(consumer)
    await pair.node_b.path.drain()
    assert await rows_left(postgres_url, schema) == 0


@pytest.mark.parametrize("size", [10, 1000])
async def test_statements_do_not_grow_with_messages(pair: Pair, postgres_url: str, schema: str, size: int) -> None:
    """Twenty batches take the same number of statements, whatever the number of their messages."""
    consumer, publisher = pair.queue_b.add(10_000), TestPublisher()
    await until(lambda: not pair.queue_b.level.demand.backlog)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("SELECT pg_stat_statements_reset()")
        for number in range(20):
            pair.node_a.publish([pair.queue_a], [b"%d" % index for index in range(size)], publisher)
            await consume(pair.queue_b, consumer, size * (number + 1))
        await pair.node_b.path.drain()
        counted = await connection.fetchval(
            "SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND query ~ 'commit|lease|chunk|notify|give'"
        )
    finally:
        await connection.close()
    assert 20 * 4 <= counted <= 20 * 9  # commit, notify, lease and chunk; settlements, and leases that look for more
    assert await rows_left(postgres_url, schema) == 0


async def test_large_messages_come_whole(pair: Pair) -> None:
    """A message of several megabytes is stored in parts and read back as it was."""
    consumer = pair.queue_b.add(10)
    body = bytes(range(256)) * 12_000
    pair.node_a.publish([pair.queue_a], [body])
    await until(lambda: consumer.got == [body])


async def test_unacked_messages_of_a_channel_that_closed_are_redelivered_elsewhere(pair: Pair) -> None:
    """Delivery counts and the mark travel with what a node returns."""
    consumer = pair.queue_a.add(2)
    await until(lambda: not pair.queue_a.level.demand.backlog)
    pair.node_a.publish([pair.queue_a], [b"1", b"2", b"3"])
    await pair.node_a.path.drain()
    pair.queue_a.remove(consumer)
    other = pair.queue_b.add(10)
    await until(lambda: other.got == [b"1", b"2", b"3"])
    assert other.again == [True, True, False]
    counts = [(slot.acquired_count(index), slot.delivery_count(index)) for slot, index in other.held]
    assert counts == [(1, 1), (1, 1), (0, 0)]
