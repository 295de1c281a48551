"""Job queues on PostgreSQL that a user could take instead: one process publishes, another works.

`python -m bench.cluster.peers LIBRARY VERB URL MESSAGES SIZE BATCH` is such a process; it prints its figures as JSON. A
publisher commits each message, or each batch, before it goes on, as a confirm does. A payload begins with the time of
its publishing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from bench.brokers import PROJECT
from bench.cluster.cases import Case
from bench.cluster.nodes import Database
from bench.run import Figures
from broker.perf.crew import RunFailed

_LIMIT_S: Final = 300.0
_CONNECTIONS: Final = {1: 16, 100: 2}  # of a publisher: for one message per commit, many at once
_STAMP_DIGITS: Final = 20
_QUIET_S: Final = 30.0  # a worker that waits longer for its next message has failed
_BATCH: Final = 100  # of a worker


def race(case: Case, database: Database) -> Figures:
    """Return the figures of one run. Raises: RunFailed."""
    url = database.new_url()
    _Process(case, "install", url).end()
    worker, publisher = _Process(case, "work", url), _Process(case, "publish", url)
    try:
        for process in (worker, publisher):
            process.await_ready()
        before_s = database.processes.usage().cpu_s
        published, worked = publisher.end(), worker.end()
        database_s = database.processes.usage().cpu_s - before_s
    finally:
        for process in (worker, publisher):
            process.kill()
    return {
        "per_s": case.messages / (worked["ended_s"] - published["begun_s"]),
        "p50_us": worked["p50_us"],
        "p99_us": worked["p99_us"],
        "broker_us": (published["cpu_s"] + worked["cpu_s"]) / case.messages * 1e6,
        "database_us": database_s / case.messages * 1e6,
    }


class _Process:
    """One process of a library; it begins when its input says so."""

    def __init__(self, case: Case, verb: str, url: str) -> None:
        words = [case.peer, verb, url, str(case.messages), str(case.size), str(case.batch)]
        self._name = f"{case.peer} {verb}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.cluster.peers", *words],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_ready(self) -> None:
        """Wait until the process is connected. Raises: RunFailed."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RunFailed(f"{self._name} did not start: {self._process.communicate()[1][-300:]}")

    def end(self) -> Figures:
        """Let the process begin, and return its figures at its end. Raises: RunFailed."""
        try:
            out, errors = self._process.communicate("go\n", timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{self._name} took longer than {_LIMIT_S:.0f} s") from None
        if self._process.returncode or not out:
            raise RunFailed(f"{self._name} failed: {errors.strip()[-300:]}")
        figures: Figures = json.loads(out.splitlines()[-1])
        return figures

    def kill(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def payload(size: int) -> str:
    """Return a payload that begins with the time."""
    return f"{time.monotonic_ns():0{_STAMP_DIGITS}d}".ljust(size, "x")


class Received:
    """The ages of the messages of a worker, which ends when all have come."""

    def __init__(self, expected: int, finish: Callable[[], None]) -> None:
        self._expected = expected
        self._finish = finish
        self._ages_ns: list[int] = []

    def take(self, payload: str) -> None:
        """Take one message."""
        self._ages_ns.append(time.monotonic_ns() - int(payload[:_STAMP_DIGITS]))
        if len(self._ages_ns) == self._expected:
            self._finish()

    def figures(self) -> Figures:
        """Return the figures of a worker that has ended."""
        ages, count = sorted(self._ages_ns), self._expected
        return {"ended_s": time.monotonic(), "p50_us": ages[count // 2] / 1e3, "p99_us": ages[count * 99 // 100] / 1e3}


class PgQueuer:
    """pgqueuer with asyncpg."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def _queries(self) -> Any:
        import asyncpg
        from pgqueuer import Queries
        from pgqueuer.db import AsyncpgDriver

        return Queries(AsyncpgDriver(await asyncpg.connect(self._url)))

    async def install(self) -> None:
        await (await self._queries()).install()

    async def publisher(self, size: int) -> Callable[[int], Awaitable[Any]]:
        queries = await self._queries()

        async def publish(count: int) -> None:
            if count == 1:
                await queries.enqueue("work", payload(size).encode())
            else:
                await queries.enqueue(["work"] * count, [payload(size).encode() for _ in range(count)], [0] * count)

        return publish

    async def work(self, messages: int, ready: Callable[[], None]) -> Received:
        from pgqueuer import PgQueuer

        worker = PgQueuer((await self._queries()).driver)
        received = Received(messages, worker.shutdown.set)

        async def take(job: Any) -> None:
            received.take((job.payload or b"").decode())

        worker.entrypoint("work")(take)
        ready()
        await worker.run(batch_size=_BATCH, dequeue_timeout=timedelta(seconds=_QUIET_S))
        return received


class Procrastinate:
    """procrastinate with psycopg."""

    def __init__(self, url: str) -> None:
        import procrastinate

        self._app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=16))

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def publisher(self, size: int) -> Callable[[int], Awaitable[Any]]:
        await self._app.open_async()
        task = self._app.configure_task("work", queue="work")
        return lambda count: task.batch_defer_async(*({"payload": payload(size)} for _ in range(count)))

    async def work(self, messages: int, ready: Callable[[], None]) -> Received:
        stop = asyncio.Event()
        received = Received(messages, stop.set)

        async def take(payload: str) -> None:
            received.take(payload)

        self._app.task(name="work")(take)
        async with self._app.open_async():
            running = asyncio.ensure_future(
                self._app.run_worker_async(concurrency=_BATCH, install_signal_handlers=False, delete_jobs="always")
            )
            ready()
            await asyncio.wait_for(stop.wait(), _LIMIT_S)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return received


async def run(library: str, verb: str, url: str, messages: int, size: int, batch: int) -> Figures:
    """Run one verb and return its figures."""
    peer: Any = {"pgqueuer": PgQueuer, "procrastinate": Procrastinate}[library](url)
    if verb == "install":
        await peer.install()
        return {}
    connected_s = 0.0

    def ready() -> None:
        nonlocal connected_s
        connected_s = time.process_time()
        print("ready", flush=True)

    if verb == "work":
        figures: Figures = (await peer.work(messages, ready)).figures()
    else:
        publishers = [await peer.publisher(size) for _ in range(_CONNECTIONS[batch] if library == "pgqueuer" else 1)]
        parts = [batch] * (messages // batch)

        async def publish(one: Callable[[int], Awaitable[Any]]) -> None:
            while parts:
                await one(parts.pop())

        ready()
        sys.stdin.readline()
        figures = {"begun_s": time.monotonic()}
        together = publishers * (_CONNECTIONS[batch] // len(publishers))
        await asyncio.gather(*map(publish, together))
    return figures | {"cpu_s": time.process_time() - connected_s}


if __name__ == "__main__":
    import uvloop

    logging.disable(logging.WARNING)
    given = sys.argv[1:]
    print(json.dumps(uvloop.run(run(*given[:3], *map(int, given[3:])))), flush=True)  # type: ignore[arg-type]
