"""The server that a node chooses from its URL, and a server that takes no writes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from broker.cluster.connections import Connections
from broker.cluster.errors import DatabaseRefused, Unreachable
from broker.cluster.server_address import ServerAddress
from tests.cluster.members import joined, publish, until
from tools.postgres_server import PostgresServer


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Provide a port that accepts connections, and then says nothing: a frozen server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def with_first(url: str, port: int) -> str:
    """Return the URL with another server in front of its own."""
    login, _, rest = url.rpartition("@")
    return f"{login}@127.0.0.1:{port},{rest}"


async def test_a_server_that_is_silent_is_passed_over(silent_port: int, postgres_url: str, schema: str) -> None:
    """It has a time limit of its own, so that time is left for the next one."""
    address = ServerAddress(with_first(postgres_url, silent_port), "a", schema, connect_timeout_s=2.0)
    connections = await Connections.open(address)
    assert connections.target.url == postgres_url
    await connections.close()


@pytest.mark.fault
async def test_a_standby_is_passed_over(postgres: PostgresServer, schema: str) -> None:
    """The node takes the server that takes writes, wherever in the URL it is."""
    with PostgresServer(primary=postgres).start() as standby:
        connections = await Connections.open(ServerAddress(with_first(postgres.url, standby.port), "a", schema))
        assert connections.target.url == postgres.url
        await connections.close()
        with pytest.raises(Unreachable, match="does not accept writes"):
            await Connections.open(ServerAddress(standby.url, "a", schema))


async def test_each_server_has_its_reason(silent_port: int, postgres_url: str, schema: str) -> None:
    """An error that no retry would fix is a refusal."""
    wrong = postgres_url.replace("//slotmq:", "//nobody:")
    address = ServerAddress(with_first(wrong, silent_port), "a", schema, connect_timeout_s=2.0)
    with pytest.raises(DatabaseRefused, match=r"no answer within 2 s; postgresql://nobody@.*authentication failed"):
        await Connections.open(address)


@pytest.mark.fault
async def test_a_server_that_takes_no_more_writes_is_a_break(postgres: PostgresServer, schema: str) -> None:
    """A demoted server, or one whose provider found its disk full: the call is sent again when it takes writes."""
    async with joined(postgres.url, schema) as a:
        postgres.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        postgres.sql("SELECT pg_reload_conf()")
        await until(lambda: not a.database.link.is_up)
        call = a.database.commit(publish(), synchronous=True)
        postgres.sql("ALTER SYSTEM RESET default_transaction_read_only")
        postgres.sql("SELECT pg_reload_conf()")
        assert (await call).refused == []
        assert a.told[:3] == ["joining", "joined", "acts"]
