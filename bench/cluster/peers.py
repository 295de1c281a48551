"""Job queues on PostgreSQL that a user could take instead: one process publishes, another works.

`python -m bench.cluster.peers NAME VERB URL ...` is such a process; it prints one line of JSON at its end. A publisher
commits each message, or each batch, before it goes on, as a confirm does. A payload begins with the time of its
publishing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from bench.brokers import PROJECT
from bench.cluster.cases import Case
from bench.cluster.nodes import Database
from broker.perf.crew import RunFailed

_LIMIT_S = 300.0
_CONNECTIONS = {1: 16, 100: 2}  # for one message per commit, many publishers at once
STAMP_DIGITS = 20
QUIET_S = 30.0  # a worker that waits longer for its next message has failed


class Received:
    """What a worker received: how many, until when, and how old."""

    def __init__(self, expected: int, finish: Callable[[], None]) -> None:
        self._expected = expected
        self._finish = finish
        self.ages_ns: list[int] = []
        self.ended_s = 0.0

    def take(self, payload: str) -> None:
        """Take one message."""
        self.ages_ns.append(time.monotonic_ns() - int(payload[:STAMP_DIGITS]))
        if len(self.ages_ns) == self._expected:
            self.ended_s = time.monotonic()
            self._finish()

    def report(self) -> dict[str, Any]:
        """Return the figures. Units: `p50` and `p99` in microseconds."""
        ages = sorted(self.ages_ns)
        count = len(ages)
        return {
            "received": count,
            "ended_s": self.ended_s,
            "p50_us": ages[count // 2] / 1e3 if ages else None,
            "p99_us": ages[count * 99 // 100] / 1e3 if ages else None,
        }


def payload(size: int) -> str:
    """Return a payload that begins with the time."""
    return f"{time.monotonic_ns():0{STAMP_DIGITS}d}".ljust(size, "x")


class Peer(ABC):
    """One library."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cpu_before_s = 0.0

    def ready(self) -> None:
        """Say that the process is connected, and count its CPU time from here."""
        self.cpu_before_s = cpu_s()
        print("ready", flush=True)

    @abstractmethod
    async def install(self) -> None:
        """Make the library's tables."""

    @abstractmethod
    async def publish(self, given: argparse.Namespace, parts: list[int]) -> None:
        """Publish batches of these sizes over `given.connections` connections."""

    @abstractmethod
    async def work(self, given: argparse.Namespace) -> Received:
        """Receive `given.messages` messages."""


class PgQueuerPeer(Peer):
    """pgqueuer with asyncpg."""

    async def install(self) -> None:
        import asyncpg
        from pgqueuer import Queries
        from pgqueuer.db import AsyncpgDriver

        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def publish(self, given: argparse.Namespace, parts: list[int]) -> None:
        import asyncpg
        from pgqueuer import Queries
        from pgqueuer.db import AsyncpgDriver

        async def one() -> None:
            connection = await asyncpg.connect(self.url)
            queries = Queries(AsyncpgDriver(connection))
            while parts:
                count, number = parts.pop(), len(parts)
                if count == 1:
                    await queries.enqueue(f"work{number % given.queues}", payload(given.size).encode())
                else:
                    names = [f"work{(number + at) % given.queues}" for at in range(count)]
                    await queries.enqueue(names, [payload(given.size).encode() for _ in names], [0] * count)
            await connection.close()

        await asyncio.gather(*(one() for _ in range(given.connections)))

    async def work(self, given: argparse.Namespace) -> Received:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.models import Job

        connection = await asyncpg.connect(self.url)
        worker = PgQueuer(AsyncpgDriver(connection))
        received = Received(given.messages, worker.shutdown.set)

        async def take(job: Job) -> None:
            received.take((job.payload or b"").decode())

        for number in range(given.queues):
            worker.entrypoint(f"work{number}")(take)
        self.ready()
        await worker.run(batch_size=given.batch_size, dequeue_timeout=timedelta(seconds=QUIET_S))
        return received


class ProcrastinatePeer(Peer):
    """procrastinate with psycopg."""

    def _app(self, connections: int) -> Any:
        import procrastinate

        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=connections, max_size=connections)
        return procrastinate.App(connector=connector)

    async def install(self) -> None:
        app = self._app(1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def publish(self, given: argparse.Namespace, parts: list[int]) -> None:
        app = self._app(given.connections)
        tasks = [app.configure_task("work", queue=f"work{number}") for number in range(given.queues)]

        async def one() -> None:
            while parts:
                count, number = parts.pop(), len(parts)
                task = tasks[number % given.queues]
                if count == 1:
                    await task.defer_async(payload=payload(given.size))
                else:
                    await task.batch_defer_async(*({"payload": payload(given.size)} for _ in range(count)))

        async with app.open_async():
            await asyncio.gather(*(one() for _ in range(given.connections)))

    async def work(self, given: argparse.Namespace) -> Received:
        app = self._app(given.connections)
        stop = asyncio.Event()
        received = Received(given.messages, stop.set)

        async def take(payload: str) -> None:
            received.take(payload)

        app.task(name="work")(take)
        async with app.open_async():
            running = asyncio.ensure_future(
                app.run_worker_async(concurrency=given.batch_size, install_signal_handlers=False, delete_jobs="always")
            )
            self.ready()
            ended = asyncio.ensure_future(stop.wait())
            await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return received


def cpu_s() -> float:
    """Return the CPU time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


PEERS: dict[str, type[Peer]] = {"pgqueuer": PgQueuerPeer, "procrastinate": ProcrastinatePeer}


def race(case: Case, database: Database) -> dict[str, Any]:
    """Return the figures of one run. Raises: RunFailed."""
    url = database.new_url()
    _end(_Process(case, "install", url))
    worker = _Process(case, "work", url, batch=100)
    publisher = _Process(case, "publish", url, batch=case.batch)
    try:
        worker.await_ready()
        publisher.await_ready()
        before_s = database.processes.usage().cpu_s
        publisher.begin()
        published, worked = _end(publisher), _end(worker)
        database_s = database.processes.usage().cpu_s - before_s
    finally:
        for process in (worker, publisher):
            process.kill()
    seconds = worked["ended_s"] - published["begun_s"]
    return {
        "messages": case.messages,
        "seconds": seconds,
        "per_s": case.messages / seconds,
        "p50_us": worked["p50_us"],
        "p99_us": worked["p99_us"],
        "broker_us": (published["cpu_s"] + worked["cpu_s"]) / case.messages * 1e6,
        "database_us": database_s / case.messages * 1e6,
    }


class _Process:
    """One process of the library."""

    def __init__(self, case: Case, verb: str, url: str, batch: int = 1) -> None:
        options = {
            "--messages": case.messages,
            "--size": case.size,
            "--queues": case.queues,
            "--batch-size": batch,
            "--connections": _CONNECTIONS[case.batch] if verb == "publish" else 4,
        }
        words = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "bench.cluster.peers", case.peer, verb, url, *words]
        self.name = f"{case.peer} {verb}"
        self._process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def await_ready(self) -> None:
        """Wait until the process is connected."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RunFailed(f"{self.name} did not start: {self.ended()[1][-500:]}")

    def begin(self) -> None:
        """Let the publisher begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def ended(self) -> tuple[str, str]:
        """Wait for the end and return the output."""
        return self._process.communicate(timeout=_LIMIT_S)

    def kill(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _end(process: _Process) -> dict[str, Any]:
    try:
        out, errors = process.ended()
        figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise RunFailed(f"{process.name} failed: {errors.strip()[-500:]}") from None
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{process.name} took longer than {_LIMIT_S:.0f} s") from None
    return figures


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """Run one verb and return its figures."""
    peer = PEERS[given.peer](given.url)
    if given.verb == "install":
        await peer.install()
        return {}
    if given.verb == "work":
        report = (await peer.work(given)).report()
    else:
        parts = [given.batch_size] * (given.messages // given.batch_size)
        peer.ready()
        sys.stdin.readline()
        begun = time.monotonic()
        await peer.publish(given, parts)
        report = {"begun_s": begun, "ended_s": time.monotonic()}
    return report | {"cpu_s": cpu_s() - peer.cpu_before_s}


def main() -> int:
    """Run one verb of one library."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.peers", description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("verb", choices=("install", "publish", "work"))
    parser.add_argument("url")
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--connections", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    import uvloop

    print(json.dumps(uvloop.run(run(given))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
