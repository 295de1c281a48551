"""The servers that a node connects to: names and texts without the password."""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import Any
from unittest.mock import AsyncMock, Mock

import asyncpg
import pytest

from broker.cluster.connections import LANES, Connections
from broker.cluster.errors import DatabaseRefused, Unreachable
from broker.cluster.server_address import ServerAddress


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:s3cret@db/x", "postgresql://u@db/x"),
        ("postgresql://u:s%2Fcret@a:1,b:2/x?sslmode=require", "postgresql://u@a:1,b:2/x?sslmode=require"),
        ("postgresql:///x?host=/run&password=s3cret&user=u", "postgresql:///x?host=/run&password=***&user=u"),
        ("postgresql://u@db/x?sslpassword=s3cret", "postgresql://u@db/x?sslpassword=***"),
        ("postgresql://u:s3@c/ret@db/x", "postgresql://u@db/x"),
        ("postgresql://db/x", "postgresql://db/x"),
        ("postgresql://db:5432/x", "postgresql://db:5432/x"),
    ],
)
def test_the_shown_url_has_no_password(url: str, shown: str) -> None:
    """Logs and errors name the database, its user and its options."""
    assert ServerAddress(url, "a").shown == shown


def test_no_reason_has_the_url() -> None:
    """A reason is one line, and quotes the URL without its password."""
    target = ServerAddress("postgresql://u:s3cret@db/x?sslpassword=other", "a")
    assert target.reason(ValueError(f"bad\n {target.url}")) == "bad postgresql://u@db/x?sslpassword=***"


@pytest.mark.parametrize("password", ["a", "postgres", "password", "user"])
def test_a_reason_reveals_no_password_by_a_gap(password: str) -> None:
    """The words of the server's texts stay, also if one of them is the password."""
    text = 'password authentication failed for user "postgres"'
    target = ServerAddress(f"postgresql://postgres:{password}@db/x", "a")
    assert target.reason(asyncpg.InvalidPasswordError(text)) == text


def test_a_node_of_the_usual_schema_is_named_by_its_name() -> None:
    """PostgreSQL lists the connections by it; it cuts names of more than 63 bytes, so that ours are not longer."""
    assert ServerAddress("", "a").application_name == "slotmq a"
    assert ServerAddress("", "a", "other").application_name == "slotmq a other"
    assert len(ServerAddress("", "ä" * 60).application_name.encode()) <= 63


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncpg.InvalidSQLStatementNameError('prepared statement "s1" does not exist'), "pooler in session mode"),
        (asyncpg.DuplicatePreparedStatementError('prepared statement "s1" already exists'), "pooler in session mode"),
        (
            asyncpg.UndefinedObjectError('unrecognized configuration parameter "keepalives"'),
            '"keepalives": remove this',
        ),
        (asyncpg.ProtocolViolationError("unsupported startup parameter: options"), "options: remove this option"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed:\n self-signed"), "failed: self-signed"),
        (ConnectionError('PostgreSQL server at "db" rejected SSL upgrade'), "rejected SSL upgrade"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "directory: a certificate or key"),
    ],
)
async def test_what_no_other_attempt_mends_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    """Its text is one line, and says what to change."""

    async def refuse(*_arguments: Any, **_named: Any) -> None:
        raise error

    monkeypatch.setattr(asyncpg, "connect", refuse)
    with pytest.raises(DatabaseRefused) as refused:
        await Connections.open(ServerAddress("postgresql://db/x?sslmode=verify-full", "a"))
    assert str(refused.value).startswith("postgresql://db/x?sslmode=verify-full: ")
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_driver_that_is_confused_by_a_dying_server_could_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's last words between two answers are a break like any other, and no defect that ends the broker."""

    async def confused(*_arguments: Any, **_named: Any) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

    monkeypatch.setattr(asyncpg, "connect", confused)
    with pytest.raises(Unreachable, match="cannot switch"):
        await Connections.open(ServerAddress("postgresql://db/x", "a"))


async def test_an_opening_that_is_cancelled_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that stops while PostgreSQL comes back may have opened some of its connections already."""
    drivers: list[Mock] = []
    hung = asyncio.Event()

    async def connect(*_arguments: Any, **_named: Any) -> Mock:
        if len(drivers) == len(LANES) - 1:
            hung.set()
            await asyncio.Event().wait()
        drivers.append(Mock(set_type_codec=AsyncMock(), fetchrow=AsyncMock()))
        drivers[-1]._transport.get_extra_info.return_value = None
        return drivers[-1]

    monkeypatch.setattr(asyncpg, "connect", connect)
    opening = asyncio.ensure_future(Connections.open(ServerAddress("postgresql://db/x", "a")))
    await hung.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [driver.terminate.call_count for driver in drivers] == [1] * (len(LANES) - 1)
