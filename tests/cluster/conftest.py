"""A PostgreSQL for the tests of the cluster, and a schema of its own for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.postgres import EXTERNAL_URL, drop_schemas, new_server
from tools.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    """Provide the server that tests share; it is not to be stopped."""
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
    if EXTERNAL_URL and names:  # the server from the wheel goes with its folder
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
