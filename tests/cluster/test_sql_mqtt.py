"""Client ids and retained messages of MQTT in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cluster.sql_session import Session


async def claim(session: Session, client: str, number: int, ended: Sequence[int] = ()) -> list[tuple[int, bool]]:
    """Claim a client id, and give up those of connections that ended."""
    query = "SELECT * FROM claim_clients($1, $2, $3, $4, $5) ORDER BY number"
    found = await session.rows(query, session.node, session.epoch, ended, [client], [number])
    return [(row["number"], row["granted"]) for row in found]


async def retain(session: Session, key: str, body: bytes, *, expires_ms: int | None = None, most: int = 2) -> Any:
    """Retain a message, of at most `most` and 100 bytes in all; return what is retained if there is no room."""
    query = "SELECT * FROM retain($1, $2, '/', $3, $4, $5, $6, $7, $8, 100)"
    one = [key.encode()], [b""], [body], [0], [expires_ms]
    found = await session.rows(query, session.node, session.epoch, *one, most)
    return [(row["count"], row["bytes"]) for row in found]


async def since(session: Session, version: int, key: str = "") -> list[tuple[int, str, bool]]:
    """Return what was retained and deleted after a version and key."""
    found = await session.rows("SELECT * FROM retained_since('/', $1, $2, 10)", version, key.encode())
    return [(row["version"], row["key"].decode(), row["deleted"]) for row in found]


async def test_a_client_id_belongs_to_one_connection(a: Session, b: Session) -> None:
    """Its holder learns that another one wants it, gives it up, or loses it when it is counted out."""
    assert await claim(a, "c", 1) == [(1, True)]
    assert await claim(a, "c", 1) == [(1, True)]  # its answer was lost
    assert await claim(b, "c", 7) == []
    assert await claim(a, "d", 2) == [(1, False), (2, True)]
    assert await claim(a, "c", 3) == [(1, False)]
    assert await claim(a, "d", 2, [1]) == [(2, True)]
    assert await claim(b, "c", 7) == [(7, True)]
    assert await claim(b, "d", 8) == []
    await b.count_out(a)
    assert await claim(b, "d", 8) == [(8, True)]


async def test_retained_messages_have_bounds(a: Session, b: Session) -> None:
    """Replacing takes no more room, deleting and expiring free it, and what is refused changes nothing."""
    assert await retain(a, "k", b"x" * 40) == []
    assert await retain(b, "l", b"x" * 40) == []
    assert await retain(a, "m", b"x") == [(2, 82)]
    assert await retain(a, "k", b"x" * 60) == [(2, 82)]
    assert await retain(b, "k", b"x" * 50) == []
    assert await since(a, 0) == [(2, "l", False), (5, "k", False)]
    assert await retain(b, "none", b"") == []
    assert await retain(b, "l", b"") == []
    assert await retain(b, "brief", b"x", expires_ms=1) == []
    assert await since(a, 5, "k") == [(7, "l", True), (8, "brief", False)]
    assert await retain(a, "m", b"x") == []
    assert await since(a, 8, "brief") == [(9, "brief", True), (9, "m", False)]
    found = await a.rows("SELECT key, body FROM retained_of('/', $1)", [b"k", b"l", b"m", b"brief"])
    assert {(row["key"], row["body"]) for row in found} == {(b"k", b"x" * 50), (b"m", b"x")}
    assert await a.rows("SELECT count, bytes FROM retained_count") == [{"count": 2, "bytes": 53}]
