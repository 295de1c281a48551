"""A PostgreSQL as providers give it: no superuser, no right to create schemas, TLS, passwords in files."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from broker.cluster.connections import LANES, Connections
from broker.cluster.database import Database
from broker.cluster.errors import DatabaseRefused
from broker.cluster.server_address import ServerAddress
from tests.broker_process import BrokerProcess
from tests.cluster.members import TestNode, joined, publish, until
from tools.postgres_server import PostgresServer


class Role:
    """A role that may log in, and nothing else. Its schema is made for it."""

    def __init__(self, postgres: PostgresServer, schema: str) -> None:
        self.name, self.password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
        postgres.sql(f"CREATE ROLE {self.name} LOGIN PASSWORD '{self.password}'")
        postgres.sql(f'CREATE SCHEMA "{schema}" AUTHORIZATION {self.name}')
        self.url = postgres.url.replace(f"slotmq:{postgres.password}", f"{self.name}:{self.password}")
        self.url_without_password = postgres.url.replace(f"slotmq:{postgres.password}", self.name)


@pytest.fixture
def role(shared_postgres: PostgresServer, schema: str) -> Role:
    """Provide a role with a schema of its own."""
    return Role(shared_postgres, schema)


async def test_a_role_without_rights_needs_only_its_schema(role: Role, schema: str) -> None:
    """Two nodes install, join, commit, empty tables, and end the sessions of a dead one."""
    async with joined(role.url, schema, "a") as a:
        b = TestNode(role.url, "b", schema, lease_ms=500)
        await b.node.start()
        await b.database.commit(publish(), synchronous=True)
        assert await a.database.turn_ring() is None
        await b.node.close()
        await a.database.end_sessions("b")
        await until(lambda: a.names == ["a"])
        [row] = await a.database.lease([7], [9], [0])
        assert row.bits.count() == 5


async def test_defaults_of_the_role_do_not_matter(role: Role, schema: str, shared_postgres: PostgresServer) -> None:
    """A node sets what it relies on in each of its sessions."""
    defaults = {
        "default_transaction_isolation": "serializable",
        "client_min_messages": "error",
        "lock_timeout": "5ms",
        "idle_session_timeout": "1s",
        "statement_timeout": "70s",
        "search_path": "pg_catalog",
    }
    for name, value in defaults.items():
        shared_postgres.sql(f"ALTER ROLE {role.name} SET {name} = '{value}'")
    connections = await Connections.open(ServerAddress(role.url, "a", schema))
    for lane in LANES:
        for name, value in defaults.items():
            assert (await connections.fetch(lane, "SELECT current_setting($1)", name))[0][0] != value
    await connections.close()


async def test_a_role_that_may_not_create_the_schema_is_refused(role: Role, schema: str) -> None:
    """The line says what to do about it."""
    database = Database(role.url, "a", schema=f"{schema}_2")
    with pytest.raises(DatabaseRefused, match=f'CREATE SCHEMA "{schema}_2" AUTHORIZATION {role.name}'):
        await database.open()
    await database.close()


async def test_a_password_in_a_file_is_found(
    role: Role, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL, or PGPASSFILE, names it. One that others can read is not used, as by psql."""
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:{role.name}:{role.password}\n")
    file.chmod(0o600)
    async with joined(f"{role.url_without_password}?passfile={file}", schema, "a"):
        pass
    monkeypatch.setenv("PGPASSFILE", str(file))
    async with joined(role.url_without_password, schema, "b"):
        pass


def test_a_password_file_that_others_may_read_is_one_line(role: Role, schema: str, tmp_path: Path) -> None:
    """It is not used; the broker ends with code 2 and names it."""
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:{role.name}:{role.password}\n")
    file.chmod(0o644)
    node = BrokerProcess(tmp_path / "a", "--cluster", f"{role.url_without_password}?passfile={file}", "--node", "a")
    node.environment["SLOTMQ_CLUSTER__SCHEMA_NAME"] = schema
    node.spawn()
    assert node.wait() == 2
    [line] = node.stderr().splitlines()
    assert "pgpass" in line
    assert "has group or world access" in line


class TlsFront:
    """TLS in front of a PostgreSQL that has none: the wheel's is built without."""

    def __init__(self, folder: Path, postgres_url: str) -> None:
        authority, self._server = trustme.CA(), urlsplit(postgres_url)
        self.trusted, self.other = folder / "ca.pem", folder / "other.pem"
        authority.cert_pem.write_to_path(str(self.trusted))
        trustme.CA().cert_pem.write_to_path(str(self.other))
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(self._context)
        self.connections = 0

    async def open(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def url(self, host: str, **options: object) -> str:
        """Return the URL by this name of the machine."""
        words = "&".join(f"{name}={value}" for name, value in options.items())
        login, _, _ = self._server.netloc.rpartition("@")
        return f"postgresql://{login}@{host}:{self.port}{self._server.path}?{words}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # SSLRequest
        writer.write(b"S")
        try:
            await writer.start_tls(self._context)
        except OSError:  # the client does not trust it
            return
        self.connections += 1
        assert self._server.hostname is not None
        there = await asyncio.open_connection(self._server.hostname, self._server.port)
        await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until it ends."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


@pytest.fixture
async def front(tmp_path: Path, postgres_url: str) -> AsyncIterator[TlsFront]:
    """Provide TLS in front of PostgreSQL."""
    made = TlsFront(tmp_path, postgres_url)
    async with await made.open():
        yield made


async def test_the_certificate_is_verified_as_the_url_says(front: TlsFront, schema: str) -> None:
    """`require` encrypts; `verify-full` also checks who signed the certificate, and its name."""
    for url in (
        front.url("127.0.0.1", sslmode="require"),
        front.url("127.0.0.1", sslmode="verify-ca", sslrootcert=front.trusted),
        front.url("localhost", sslmode="verify-full", sslrootcert=front.trusted),
    ):
        before = front.connections
        async with joined(url, schema) as a:
            assert front.connections == before + 6
            await a.node.leave()


@pytest.mark.parametrize(
    ("host", "is_other", "reason"),
    [
        ("localhost", True, "certificate verify failed: unable to get local issuer certificate"),
        ("127.0.0.1", False, "certificate verify failed: IP address mismatch"),
    ],
)
async def test_a_certificate_that_does_not_fit_is_refused(
    front: TlsFront, host: str, is_other: bool, reason: str
) -> None:
    """At once and in one line: no other attempt would help."""
    root = front.other if is_other else front.trusted
    database = Database(front.url(host, sslmode="verify-full", sslrootcert=root), "a")
    with pytest.raises(DatabaseRefused, match=reason):
        await database.open()
    await database.close()


async def test_a_server_without_tls_is_refused(shared_postgres: PostgresServer) -> None:
    """The URL demands it."""
    database = Database(shared_postgres.url + "?sslmode=require", "a")
    with pytest.raises(DatabaseRefused, match="rejected SSL upgrade"):
        await database.open()
    await database.close()


async def test_a_server_that_may_lose_commits_is_told_of_once(
    postgres: PostgresServer, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Confirms promise less then: the log says which settings are to blame, at the start and when they change."""
    lines: list[str] = []

    def told() -> list[str]:
        lines.extend(capsys.readouterr().out.splitlines())
        return [line for line in lines if "database.unsafe" in line]

    postgres.sql("ALTER SYSTEM SET synchronous_commit = 'off'")
    postgres.restart()
    async with joined(postgres.url, schema) as a:
        assert len(told()) == 1
        assert "fsync=off full_page_writes=off synchronous_commit=off" in told()[0]
        for name in ("synchronous_commit", "fsync", "full_page_writes"):
            postgres.sql(f"ALTER SYSTEM SET {name} = 'on'")
        a.database.link.drop("test")
        await until(lambda: a.rows)
        postgres.restart()
        await until(lambda: len(a.rows) == 2)
        assert len(told()) == 1
