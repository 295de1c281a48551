"""What the functions of a cluster cost PostgreSQL: CPU of its backend per call, stream and message.

python -m bench.shared_store [--streams 1 10 100 1000] [--calls 300] [--url postgresql://...]
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
    parser.add_argument("--url")
    options = parser.parse_args()
    if options.url:
        asyncio.run(measure(options.url, options.streams, options.calls))
        return
    server = PostgresServer(durable=True).start()
    try:
        asyncio.run(measure(server.url, options.streams, options.calls))
    finally:
        server.close()


if __name__ == "__main__":
    main()
