"""What the functions of a cluster cost PostgreSQL: CPU of its backend per call, stream and message.

python -m bench.shared_store [--streams 1 10 100 1000] [--calls 300] [--backlog 10000000] [--url postgresql://...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any

import asyncpg

from tests.cluster.sql_session import Session, Share
from tools.postgres_server import PostgresServer

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Clock:
    """CPU of the backend and of this process, and time, since the former call."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.before = self.now()

    def now(self) -> tuple[float, float, float]:
        """Return the three clocks."""
        return cpu_s(self.pid), time.process_time(), time.perf_counter()

    def lap(self) -> tuple[float, float, float]:
        """Return what passed since the former lap."""
        now = self.now()
        lap = tuple(after - before for after, before in zip(now, self.before, strict=True))
        self.before = now
        return lap  # type: ignore[return-value]  # three floats


async def streams_cost(url: str, streams: int, calls: int, schema: str) -> None:
    """Publish to many streams per call, lease all on another node, settle all."""
    a = await (await Session.open(url, schema)).join("a")
    b = await (await Session.open(url, schema)).join("b")
    shares = [Share(stream, free="1" * 8, mine="0" * 8) for stream in range(1, streams + 1)]
    asked = [(stream, 8) for stream in range(1, streams + 1)]
    rows: list[Any] = []
    for session, what in ((a, "insert"), (b, "lease"), (b, "settle")):
        clock = Clock(session.connection.get_server_pid())
        for call in range(calls):
            if what == "insert":
                await a.commit(*shares, record_bytes=streams * 800)
            elif what == "lease":
                rows.append(await b.lease(*asked))
            else:
                await b.commit(settle=[(r["stream"], r["number"], r["bits"]) for r in rows[call]])
        backend, own, wall = clock.lap()
        share = calls * streams
        print(
            f"{streams:5} streams a call: {what:7} backend {backend / calls * 1e6:8.0f} us a call, "
            f"{backend / share * 1e6:6.1f} us a stream; driver {own / share * 1e6:6.1f} us a stream; "
            f"{calls / wall:6.0f} calls/s"
        )
    for session in (a, b):
        await session.close()


async def bytes_cost(url: str, schema: str, calls: int = 800, rate: int = 80, size: int = 256 * 1024) -> None:
    """Commit calls of 256 KiB at a fixed rate."""
    a = await (await Session.open(url, schema)).join("a")
    share = Share(1, free="1" * 256)
    clock = Clock(a.connection.get_server_pid())
    start = time.perf_counter()
    for call in range(calls):
        await a.commit(share, record_bytes=size)
        await asyncio.sleep(max(0.0, start + (call + 1) / rate - time.perf_counter()))
    backend, own, wall = clock.lap()
    print(
        f"{calls / wall:.0f} calls/s of {size // 1024} KiB: backend {100 * backend / wall:.1f} % of a core, "
        f"driver {100 * own / wall:.1f} %"
    )
    start = time.perf_counter()
    for _ in range(calls // 2):
        await a.commit(share, record_bytes=size)
    wall = time.perf_counter() - start
    print(f"one connection without a pause: {calls // 2 * size / wall / 1e6:.0f} MB/s")
    await a.close()


async def flow(url: str, schema: str, name: str, seconds: float = 15) -> None:
    """Publish 256 messages a call to one stream, and lease and settle them on another node."""
    a = await (await Session.open(url, schema)).join(f"a {name}")
    b = await (await Session.open(url, schema)).join(f"b {name}")
    share = Share(1, free="1" * 256)
    clocks = [Clock(session.connection.get_server_pid()) for session in (a, b)]
    end, calls, bound = time.perf_counter() + seconds, 0, 0
    while time.perf_counter() < end:
        await a.commit(share, record_bytes=64 * 1024)
        rows = await b.lease((1, 256), after=bound)
        await b.commit(settle=[(r["stream"], r["number"], r["bits"]) for r in rows], synchronous=False)
        bound = rows[-1]["number"] + 1
        calls += 1
        if calls % 100 == 0:
            await a.value("SELECT turn_ring($1, $2)", a.node, a.epoch)
            await a.value("SELECT forget($1, $2, $3, $3)", a.node, a.epoch, a.sequence)
            await b.value("SELECT forget($1, $2, $3, NULL)", b.node, b.epoch, b.sequence)
    laps = [clock.lap() for clock in clocks]
    print(
        f"{name:32} {calls / laps[0][2]:5.0f} rounds/s; backends {sum(lap[0] for lap in laps) / calls * 1e6:5.0f} us "
        "a round (publish, lease, settle)"
    )
    for session in (a, b):
        await session.value("SELECT leave($1, $2)", session.node, session.epoch)
        await session.close()


async def disturbed(url: str, schema: str, messages: int) -> None:
    """Measure alone, beside a transaction that stays open, and before a backlog."""
    await flow(url, schema, "warm", 3)
    await flow(url, schema, "alone")
    foreign = await asyncpg.connect(url)
    transaction = foreign.transaction(isolation="repeatable_read")
    await transaction.start()
    await foreign.execute(f"CREATE TABLE {schema}.foreign_row (n int)")
    await flow(url, schema, "a foreign transaction, 15 s", 15)
    await flow(url, schema, "a foreign transaction, 120 s", 105)
    await transaction.rollback()
    await foreign.close()
    behind = await (await Session.open(url, schema)).join("behind")
    for _ in range(messages // 100_000):
        await behind.commit(*(Share(stream, free="1" * 1000) for stream in range(100, 200)), record_bytes=1 << 19)
    await flow(url, schema, f"{messages:,} messages behind")
    await behind.close()


async def measure(url: str, streams: list[int], calls: int) -> None:
    """Measure each number of streams in a schema of its own."""
    names = [f"shared_store_{count}" for count in streams]
    for count, schema in zip(streams, names, strict=True):
        await streams_cost(url, count, max(calls // max(count // 10, 1), 20), schema)
    await bytes_cost(url, "shared_store_bytes")
    connection = await asyncpg.connect(url)
    for schema in [*names, "shared_store_bytes"]:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await connection.close()


def main() -> None:
    """Measure on the named PostgreSQL, else on one from the wheel, with fsync."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--backlog", type=int, help="measure beside a foreign transaction and this backlog instead")
    parser.add_argument("--url")
    options = parser.parse_args()
    server = None if options.url else PostgresServer(durable=True).start()
    url = options.url if server is None else server.url
    try:
        if options.backlog:
            asyncio.run(disturbed(url, "shared_store_disturbed", options.backlog))
        else:
            asyncio.run(measure(url, options.streams, options.calls))
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
