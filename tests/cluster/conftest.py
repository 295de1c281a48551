"""A PostgreSQL for the tests of the cluster, and a schema of its own for each test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.invariants import violations
from tests.cluster.model_pair import ModelPair
from tests.cluster.postgres import EXTERNAL_URL, drop_schemas, new_server
from tests.cluster.sql_session import Session, Sessions
from tests.cluster.two_nodes import Nodes
from tools.postgres_server import PostgresServer

LASTING_LEASE_MS = 1500  # on a busy machine a node may starve for longer than the usual lease of tests


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    """Provide the server that tests share and must not stop."""
    server = new_server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> str:
    """Provide the URL of a PostgreSQL."""
    if EXTERNAL_URL:
        return EXTERNAL_URL
    server: PostgresServer = request.getfixturevalue("shared_postgres")
    return server.url


@pytest.fixture(scope="session")
def _schemas() -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    if EXTERNAL_URL and names:  # the server from the wheel is deleted with its folder
        drop_schemas(EXTERNAL_URL, names)


@pytest.fixture
def schema(_schemas: list[str]) -> str:
    """Provide the name of a schema that does not exist yet."""
    name = f"slotmq_test_{secrets.token_hex(6)}"
    _schemas.append(name)
    return name


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Provide a server of the test's own, which the test may kill and restart (fault tests)."""
    server = new_server()
    yield server
    server.close()


@pytest.fixture
def durable_postgres() -> Iterator[PostgresServer]:
    """Provide a server of the test's own with fsync."""
    server = new_server(durable=True)
    yield server
    server.close()


@pytest.fixture(scope="module")
def lasting_nodes(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, _schemas: list[str]) -> Iterator[Nodes]:
    """Provide two nodes that the tests of a module share."""
    _schemas.append(f"slotmq_test_{secrets.token_hex(6)}")
    folder = tmp_path_factory.mktemp("nodes")
    with Nodes(folder, postgres_url, _schemas[-1], "a", "b", lease_ms=LASTING_LEASE_MS) as both:
        yield both


@pytest.fixture
def own_nodes(tmp_path: Path, postgres: PostgresServer) -> Iterator[Nodes]:
    """Provide two nodes that the test may stop, on a database that it may stop."""
    with Nodes(tmp_path, postgres.url, "slotmq", "a", "b", lease_ms=LASTING_LEASE_MS) as both:
        yield both


@pytest.fixture
def nodes(lasting_nodes: Nodes) -> Iterator[Nodes]:
    """Provide two nodes without queues; a test may kill one."""
    yield lasting_nodes
    lasting_nodes.renew()


@pytest.fixture
async def sessions(postgres_url: str, schema: str) -> AsyncIterator[Sessions]:
    """Provide a function that opens a session of a node, which joins at first; check the tables at the end."""
    opened: list[Session] = []

    async def open_session(node: str) -> Session:
        session = await Session.open(postgres_url, schema)
        former = next((other for other in reversed(opened) if other.node == node), None)
        opened.append(session)
        return session.as_node(former) if former else await session.join(node)

    yield open_session
    found = await violations(opened[0].connection)
    for session in opened:
        await session.close()
    assert not found


@pytest.fixture
async def pair() -> AsyncIterator[ModelPair]:
    """Provide two nodes over a database in memory."""
    made = ModelPair()
    yield made
    await made.close()


@pytest.fixture
async def a(sessions: Sessions) -> Session:
    """Provide a session of node a."""
    return await sessions("a")


@pytest.fixture
async def b(a: Session, sessions: Sessions) -> Session:
    """Provide a session of node b, which joins after a."""
    return await sessions("b")
