"""Two nodes, and connections whose publishes go to the other node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerAddress
from tests.cluster.integration.split_connection import SplitConnection
from tests.cluster.two_nodes import Nodes
from tools.postgres_server import PostgresServer

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, shared_postgres: PostgresServer) -> Iterator[Nodes]:
    """Provide a cluster of two nodes, which the tests of a module share."""
    folder = tmp_path_factory.mktemp("nodes")
    with Nodes(folder, shared_postgres.url, "slotmq_integration", "a", "b", lease_ms=3000) as both:
        yield both
        for name, node in both.by_name.items():
            assert node.alive, f"{name} died:\n{node.stderr()[-4000:]}"


@pytest.fixture
def broker(two_nodes: Nodes) -> BrokerAddress:
    """Provide the node that consumes, declares and binds."""
    return two_nodes.by_name["b"].address


@pytest.fixture
def connect(two_nodes: Nodes) -> Iterator[Connect]:
    """Open connections to both nodes, which are closed when the test ends."""
    addresses = [node.address for node in two_nodes.by_name.values()]
    opened: list[SplitConnection] = []

    def _connect(**options: Any) -> pika.BlockingConnection:
        publishing, other = addresses if len(opened) % 2 == 0 else reversed(addresses)
        opened.append(SplitConnection(other, publishing, **options))
        return opened[-1]

    yield _connect
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Connect) -> pika.BlockingConnection:
    """Provide an open connection."""
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """Provide an open channel."""
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    """Provide an empty queue."""
    channel.queue_declare(name)
    return name
