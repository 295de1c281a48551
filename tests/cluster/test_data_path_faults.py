"""The data path when a connection breaks at a named point of a statement, or a node dies there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest

from broker.cluster.database import Database
from broker.cluster.errors import Unreachable
from broker.cluster.schema import FUNCTION_VERSION
from tests.cluster.members import until
from tests.cluster.path_node import PathNode, PathQueue, TestConsumer, TestPublisher
from tests.cluster.proxy import Point, Proxy
from tests.cluster.test_data_path_postgres import rows_left

pytestmark = [
    pytest.mark.fault,
    pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones"),
]
LEVEL = 7
STATEMENTS = {"commit": r" commit\(", "lease": r" lease\(", "chunk": "FROM chunk_"}


class BrokenPair:
    """Node A behind a proxy, and node B."""

    def __init__(self, proxy: Proxy, databases: list[Database]) -> None:
        self.proxy = proxy
        self.databases = databases
        self.node_a, self.node_b = (PathNode(database) for database in databases)
        self.queue_a, self.queue_b = PathQueue(self.node_a, LEVEL), PathQueue(self.node_b, LEVEL)


@pytest.fixture
async def pair(postgres_url: str, schema: str) -> AsyncIterator[BrokenPair]:
    """Provide two nodes."""
    with Proxy(postgres_url) as proxy:
        databases = [Database(url, name, schema=schema) for url, name in ((proxy.url, "a"), (postgres_url, "b"))]
        for database in databases:
            await database.open()
            joined = await database.join("", FUNCTION_VERSION)
            database.begin_epoch(joined.epoch, joined.generation)
        made = BrokenPair(proxy, databases)
        yield made
        for node in (made.node_a, made.node_b):
            await node.close()
        for database in databases:
            await database.close()


async def test_rows_whose_chunks_were_not_read_are_found_again(pair: BrokenPair) -> None:
    """The keeper of A leases messages, and PostgreSQL cancels the read of their chunk: they do not stay leased to A."""
    path, database = pair.node_a.path, pair.databases[0]
    pair.node_b.publish([pair.queue_b], [b"m"])
    await pair.node_b.path.drain()
    rows = await database.lease([LEVEL], [1], [0])
    assert rows[0].number is not None

    async def cancelled(_rows: object) -> NoReturn:
        raise Unreachable("canceling statement due to user request")

    path.reader.read = cancelled  # type: ignore[assignment, method-assign]
    with pytest.raises(Unreachable):
        async with path.working_on(rows):
            pass
    del path.reader.read
    there = pair.queue_b.add(1)
    await until(lambda: there.got == [b"m"])
    pair.queue_b.settle(there)
    await pair.node_b.path.drain()


def settle_all(places: list[tuple[PathQueue, TestConsumer]], settled: list[bytes]) -> None:
    """Ack what consumers hold."""
    for queue, consumer in places:
        for slot, index in consumer.held:
            assert slot.contents is not None
            settled.append(slot.contents[index].body)
        if consumer.held:
            queue.settle(consumer)


@pytest.mark.parametrize("point", list(Point))
@pytest.mark.parametrize("statement", list(STATEMENTS))
async def test_a_broken_connection_loses_and_doubles_nothing(
    pair: BrokenPair, postgres_url: str, schema: str, statement: str, point: Point
) -> None:
    """Whichever statement of A breaks, and where: every message is delivered, and again only with its mark."""
    node_a, node_b = pair.node_a, pair.node_b
    waiting, there = pair.queue_a.add(4), pair.queue_b.add(4)
    await until(lambda: not pair.queue_a.level.demand.backlog)
    trap = pair.proxy.trap(STATEMENTS[statement], point)
    publishers = TestPublisher(), TestPublisher()
    settled: list[bytes] = []
    for number in range(12):
        for node, queue, publisher in ((node_a, pair.queue_a, publishers[0]), (node_b, pair.queue_b, publishers[1])):
            node.publish(
                [queue], [b"%s %02d %d" % (b"ab"[node is node_b :][:1], number, one) for one in range(5)], publisher
            )
        if number == 5:
            waiting.prefetch = 0  # what A has ready goes back
        if number == 8:
            waiting.prefetch = 4
            pair.queue_a.credit(waiting)
        if number != 5:
            settle_all([(pair.queue_a, waiting), (pair.queue_b, there)], settled)
        await asyncio.sleep(0.06 if number == 5 else 0.002)

    def done() -> bool:
        settle_all([(pair.queue_a, waiting), (pair.queue_b, there)], settled)
        return len(set(settled)) == 120 and all(one.confirmed == 60 for one in publishers)

    await until(done)
    assert trap.sprung.is_set()
    for node in (node_a, node_b):
        await node.path.drain()
    unmarked = [
        body
        for consumer in (waiting, there)
        for body, again in zip(consumer.got, consumer.again, strict=True)
        if not again
    ]
    assert len(unmarked) == len(set(unmarked))
    assert await rows_left(postgres_url, schema) == 0


@pytest.mark.parametrize("point", list(Point))
async def test_a_return_that_breaks_loses_and_doubles_nothing(
    pair: BrokenPair, postgres_url: str, schema: str, point: Point
) -> None:
    """A returns messages, which have not been delivered, to B, and its connection breaks."""
    pair.queue_a.serve = lambda: None  # type: ignore[method-assign] # its worker is busy
    waiting, there = pair.queue_a.add(4), pair.queue_b.add(0)
    await until(lambda: not pair.queue_a.level.demand.backlog)
    bodies = [b"%d" % number for number in range(6)]
    pair.node_b.publish([pair.queue_b], bodies)
    await until(lambda: pair.queue_a.ready == 4)
    trap = pair.proxy.trap(r" give_back\(", point)
    waiting.prefetch = 0
    await until(trap.sprung.is_set)
    there.prefetch = 10
    pair.queue_b.credit(there)
    await until(lambda: len(there.got) >= 6)
    assert sorted(there.got) == bodies
    assert not any(there.again)
    pair.queue_b.settle(there)
    for node in (pair.node_a, pair.node_b):
        await node.path.drain()
    assert await rows_left(postgres_url, schema) == 0
