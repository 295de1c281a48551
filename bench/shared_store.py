"""What the functions of a cluster cost PostgreSQL: CPU of its backend per call, stream and message.

python -m bench.shared_store [--streams 1 10 100 1000] [--calls 300] [--url postgresql://...]

With --backlog it tells how much slower calls are beside a transaction that stays open, beside pg_dump, and before a
backlog: python -m bench.shared_store --backlog 10000000 [--slices 12] [--seconds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self

import asyncpg

from tests.cluster.sql_session import Session, Share
from tools.postgres_server import PostgresServer

SCHEMA = "shared_store"
Disturbance = Callable[[bool], None]  # is told whether it may go on
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


class Flow:
    """Publishes 256 messages a call to one stream, and leases and settles them on another node."""

    def __init__(self, publisher: Session, consumer: Session) -> None:
        self._publisher = publisher
        self._consumer = consumer
        self._rounds = 0
        self._bound = 0

    @classmethod
    async def open(cls, url: str) -> Self:
        """Make the schema in a database, and connect two nodes."""
        publisher, consumer = [await (await Session.open(url, SCHEMA)).join(name) for name in "ab"]
        return cls(publisher, consumer)

    async def run(self, seconds: float) -> tuple[float, float]:
        """Return rounds per second, and the CPU seconds of both backends in one."""
        a, b = self._publisher, self._consumer
        share = Share(1, free="1" * 256)
        clocks = [Clock(session.connection.get_server_pid()) for session in (a, b)]
        before, begun = self._rounds, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            await a.commit(share, record_bytes=64 * 1024)
            rows = await b.lease((1, 256), after=self._bound)
            await b.commit(settle=[(r["stream"], r["number"], r["bits"]) for r in rows], synchronous=False)
            self._bound = rows[-1]["number"]
            self._rounds += 1
            if self._rounds % 100 == 0:
                await a.value("SELECT turn_ring($1, $2)", a.node, a.epoch)
                for session in (a, b):
                    sequence = session.sequence
                    forget = "SELECT forget($1, $2, $3, NULL, $4)"
                    await session.value(forget, session.node, session.epoch, sequence, sequence - 101)
        count = self._rounds - before
        return count / (time.perf_counter() - begun), sum(clock.lap()[0] for clock in clocks) / count

    async def close(self) -> None:
        """Close the connections."""
        for session in (self._publisher, self._consumer):
            await session.close()


@asynccontextmanager
async def open_transaction(url: str) -> AsyncIterator[Disturbance]:
    """Hold a transaction open that has written."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.execute("CREATE TABLE foreign_row (n int)")
    yield lambda _: None
    await transaction.rollback()
    await connection.close()


@asynccontextmanager
async def dump(program: Path, url: str) -> AsyncIterator[Disturbance]:
    """Run pg_dump again and again, but not while the flow beside it is measured."""
    command = f"while '{program}' --file /dev/null '{url}'; do :; done"
    process = await asyncio.create_subprocess_shell(command, start_new_session=True)
    yield lambda goes_on: os.killpg(process.pid, signal.SIGCONT if goes_on else signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


@asynccontextmanager
async def backlog(url: str, messages: int) -> AsyncIterator[Disturbance]:
    """Publish messages to 100 other streams, which nobody consumes."""
    behind = await (await Session.open(url, SCHEMA)).join("behind")
    for _ in range(messages // 100_000):
        await behind.commit(*(Share(stream, free="1" * 1000) for stream in range(100, 200)), record_bytes=1 << 19)
    yield lambda _: None
    await behind.close()


async def disturbed(url: str, program: Path, messages: int, slices: int, seconds: float) -> None:
    """Compare two databases of one server in turn: one by itself, and one with what disturbs it.

    Each slice is compared with the one before it, and the median counts, because the machine may have other work.
    A transaction holds back the vacuum of its own database only.
    """
    for name, disturbance in (
        ("a transaction that stays open", open_transaction),
        (f"{messages:,} messages behind", partial(backlog, messages=messages)),
        ("pg_dump", partial(dump, program)),
    ):
        databases = [f"{SCHEMA}_{secrets.token_hex(4)}" for _ in range(2)]
        connection = await asyncpg.connect(url)
        for database in databases:
            await connection.execute(f"CREATE DATABASE {database}")
        urls = [f"{url.rpartition('/')[0]}/{database}" for database in databases]
        flows = [await Flow.open(one) for one in urls]
        for flow in flows:
            await flow.run(seconds)
        rates: tuple[list[float], list[float]] = ([], [])
        costs: tuple[list[float], list[float]] = ([], [])
        async with disturbance(urls[1]) as disturb:
            for number in range(2 * slices):
                place = number % 2
                disturb(bool(place))
                rate, cost_s = await flows[place].run(seconds)
                rates[place].append(rate)
                costs[place].append(cost_s * 1e6)
        slower = 100 * (median(one / other for one, other in zip(*rates, strict=True)) - 1)
        dearer = 100 * (median(other / one for one, other in zip(*costs, strict=True)) - 1)
        (alone, beside), (alone_us, beside_us) = map(median, rates), map(median, costs)
        print(
            f"{name}: {beside:,.0f} rounds/s, {alone:,.0f} without: {slower:.0f} % slower, goal at most 20: "
            f"{'met' if slower <= 20 else 'MISSED'}; backends {beside_us:,.0f} us a round, {alone_us:,.0f} without: "
            f"{dearer:.0f} % more; the last slices {rates[1][-1]:,.0f} and {rates[0][-1]:,.0f} rounds/s",
            flush=True,
        )
        for flow in flows:
            await flow.close()
        for database in databases:
            await connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
        await connection.close()


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
    parser.add_argument(
        "--backlog", type=int, help="compare with a foreign transaction, pg_dump and this backlog instead"
    )
    parser.add_argument("--slices", type=int, default=12, help="of each of two databases, in turn (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a slice takes (%(default)g)")
    parser.add_argument("--pg-dump", type=Path, default=Path("pg_dump"), help="of the version of the server of --url")
    parser.add_argument("--url")
    options = parser.parse_args()
    server = None if options.url else PostgresServer(durable=True).start()
    url = options.url if server is None else server.url
    try:
        if options.backlog:
            program = options.pg_dump if server is None else server.program("pg_dump")
            asyncio.run(disturbed(url, program, options.backlog, options.slices, options.seconds))
        else:
            asyncio.run(measure(url, options.streams, options.calls))
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
