"""A page of PostgreSQL that a disk has damaged: what is on it cannot be read, and everything else can."""

from __future__ import annotations

import pytest

from broker.cluster.chunk import DamagedChunk
from broker.cluster.chunk_reader import ChunkReader
from broker.cluster.database_rows import SharedCall
from broker.cluster.link import patiently
from tests.cluster.members import LEVEL, joined, publish
from tools.postgres_server import PostgresServer

pytestmark = pytest.mark.fault
PAGE_BYTES = 8192


async def test_chunks_on_a_damaged_page_are_damaged(postgres: PostgresServer, schema: str) -> None:
    """The reader asks for each chunk by itself, so that others of the same lease are read."""
    async with joined(postgres.url, schema) as a:
        for part in (b"a" * 6000, b"b" * 6000):  # a page each
            call: SharedCall = publish()._replace(parts=[part])
            await a.database.commit(call, synchronous=True)
        rows = await a.database.lease([LEVEL], [100], [0])
        assert len(rows) == 2
        table = f"SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = '\"{schema}\".chunk_0'::regclass"
        file = postgres.data / postgres.sql(table)
        postgres.sql("CHECKPOINT")
        postgres.stop()
        content = bytearray(file.read_bytes())
        content[PAGE_BYTES : PAGE_BYTES + 16] = b"\xff" * 16  # the header of the second page
        file.write_bytes(content)
        postgres.start()
        found = await patiently(lambda: ChunkReader(a.database).read(rows))
    one, other = (found[row.number or 0] for row in rows)
    assert isinstance(other, DamagedChunk)
    assert "invalid page" in str(other)
    assert "invalid page" not in str(one)
