"""A vhost that goes offline on a node of a cluster, and is deleted then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.administration.deciding import decided
from broker.amqp.errors import ChannelError
from broker.server import BrokerServer
from broker.store.damage import CorruptStore
from tests.cluster.members import CALM_MS, until
from tests.cluster.two_nodes import rows
from tests.in_process import running_broker
from tools.postgres_server import PostgresServer


@pytest.fixture
async def nodes(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> AsyncIterator[list[BrokerServer]]:
    """Provide two nodes with a vhost."""
    cluster = {"url": shared_postgres.url, "schema_name": schema, "lease_ms": CALM_MS}
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(running_broker(tmp_path / node, cluster={**cluster, "node": node}))
            for node in "ab"
        ]
        administration = started[0].administration
        await administration.change(lambda draft: draft.add_vhost("v", {}))
        await administration.change(lambda draft: draft.permissions.set("guest", "v", ".*", ".*", ".*"))
        yield started


async def connected(broker: BrokerServer) -> Any:
    """Return a channel of a connection to the vhost."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/v")
    return await connection.channel()


async def take_offline(broker: BrokerServer) -> None:
    """Take the vhost offline, as its damaged files do."""
    broker.vhosts.take_offline("v", CorruptStore(broker.shared.path, 1, 0, "of the test"))
    await until(lambda: "v" not in broker.engines)


async def test_what_its_clients_had_is_free(
    nodes: list[BrokerServer], shared_postgres: PostgresServer, schema: str
) -> None:
    """Messages go to other nodes, and what ends with a connection or a consumer is deleted."""
    one, other = nodes
    channel = await connected(one)
    queue = await channel.declare_queue("q", durable=True)
    got: list[Any] = []

    async def take(message: Any) -> None:
        got.append(message)

    for number in range(3):
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "q")
    await channel.declare_queue("exclusive", exclusive=True)
    await (await channel.declare_queue("auto", auto_delete=True)).consume(take)
    await channel.set_qos(prefetch_count=2)
    await queue.consume(take)
    await until(lambda: len(got) == 2)
    await take_offline(one)
    await until(lambda: list(other.vhosts["v"].queues) == ["q"])
    taker = await connected(other)
    got.clear()
    await (await taker.get_queue("q")).consume(take, no_ack=True)
    await until(lambda: sorted(message.body for message in got) == [b"0", b"1", b"2"])


async def test_its_deletion(nodes: list[BrokerServer], shared_postgres: PostgresServer, schema: str) -> None:
    """Later changes of it are refused, and a new vhost of the same name is the same on all nodes."""
    one, other = nodes
    old = one.vhosts["v"]
    await decided(partial(old.queues.declare, "q", durable=True))
    await take_offline(one)
    await other.administration.change(lambda draft: draft.drop_vhost("v"))
    with pytest.raises(ChannelError, match="vhost 'v' was deleted"):
        await decided(partial(old.queues.declare, "late", durable=True))
    await other.administration.change(lambda draft: draft.add_vhost("v", {}))
    await decided(partial(one.vhosts["v"].queues.declare, "new", durable=True))
    assert [list(node.vhosts["v"].queues) for node in nodes] == [["new"], ["new"]]


async def test_its_messages_are_deleted_with_it(
    nodes: list[BrokerServer], shared_postgres: PostgresServer, schema: str
) -> None:
    """The space of the messages is given back although no node has the vhost open."""
    one, other = nodes
    channel = await connected(one)
    await channel.declare_queue("q", durable=True)
    await channel.default_exchange.publish(aio_pika.Message(b"1", delivery_mode=2), "q")
    for node in nodes:
        await take_offline(node)
    assert rows(shared_postgres, schema) == 1
    await other.administration.change(lambda draft: draft.drop_vhost("v"))
    await until(lambda: rows(shared_postgres, schema) == 0)
