"""A cluster on a PostgreSQL from a wheel with fsync on, beside one broker by itself; fail-over.

Each round of a case has a new cluster with a database of its own. "brokers" is the CPU time of all nodes.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.brokers import PROJECT, Broker, slotmq
from bench.cluster.spread import run as spread
from bench.picture import BLUE, GREY, ORANGE, line, plain, short
from bench.run import Run
from bench.stage import Stage
from bench.suites import Suite
from bench.tables import Column, Goal, goals_table, machine_text, table_of, time_of
from broker.perf import wire
from broker.perf.faults import RunFailed
from broker.perf.machine import ProcessTree
from broker.perf.peer import PeerConnection
from tools.postgres_server import PostgresServer

_MESSAGES = 100
_QUEUE = "bench-failover"
_LIMIT_S = 60.0
OPTIONS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "off",
}
_LEASE_MS: Final = 3000
_BEST: Final = "cluster, from A to B"
SMALL: Final = 100  # bytes of a body
LARGE: Final = 1024
_COLOURS: Final = {SMALL: BLUE, LARGE: ORANGE}
SIZES: Final = (SMALL, LARGE)
PATHS: Final = {
    "one broker, its own log": (0, (0,)),
    "cluster, same node": (2, (0,)),
    "cluster, from A to B": (2, (1,)),
}
"""The nodes of each path, 0 for a broker by itself, and where its consumer is."""
QUEUES: Final = (1, 10, 100, 1000)
_NAME: Final = (Column("", "name", str), Column("bytes", "size", "{:,}".format))
_TIMES: Final = (Column("p50", "p50_us", time_of), Column("p99", "p99_us", time_of))
_COSTS: Final = (
    *_NAME,
    Column("messages/s", "per_s"),
    Column("brokers, CPU-µs", "broker_us", "{:.1f}".format),
    Column("PostgreSQL, CPU-µs", "database_us", "{:.1f}".format),
    *_TIMES,
)
_COLUMNS: Final = {
    "latency": (
        *_NAME,
        *_TIMES,
        Column("confirm p50", "confirm_p50_us", time_of),
        Column("confirm p99", "confirm_p99_us", time_of),
    ),
    "failover": (
        _NAME[0],
        Column("first delivery", "first_s", "{:.2f} s".format),
        Column("all 100 messages", "all_s", "{:.2f} s".format),
    ),
}
_PARTS: Final = ("paths", "latency", "nodes", "queues", "failover")


class Database:
    """The database and the folder of one run of the suite."""

    def __init__(self, folder: Path, package: Path, lease_ms: int) -> None:
        self.postgres = PostgresServer(durable=True, options=OPTIONS).start()
        self._folder = folder
        self._package = package
        self._lease_ms = lease_ms

    def close(self) -> None:
        """Stop the database."""
        self.postgres.close()

    @property
    def processes(self) -> ProcessTree:
        """The processes of the database."""
        return ProcessTree(self.postgres.pid)

    def new_url(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"bench_{secrets.token_hex(4)}"
        self.postgres.sql(f"CREATE DATABASE {name}")
        return self.postgres.url.rpartition("/")[0] + f"/{name}"

    @contextmanager
    def nodes(self, count: int) -> Iterator[list[Broker]]:
        """Run a cluster of this many nodes in a database of its own, or a broker by itself if there are none.

        Raises: NotStarted.
        """
        folder = self._folder / secrets.token_hex(4)
        with ExitStack() as running:
            if not count:
                yield [running.enter_context(slotmq(folder, package=self._package))]
                return
            url = self.new_url()
            brokers = []
            for number in range(count):
                name = chr(ord("a") + number)
                cluster = {"URL": url, "NODE": name, "LEASE_MS": str(self._lease_ms)}
                variables = {f"SLOTMQ_CLUSTER__{field}": text for field, text in cluster.items()}
                started = slotmq(folder / name, package=self._package, name=f"node {name}", variables=variables)
                brokers.append(running.enter_context(started))
            yield brokers


def cpu_s(brokers: Sequence[Broker]) -> float:
    """Return the CPU time that the brokers have used so far."""
    return sum(broker.processes.usage().cpu_s for broker in brokers if broker.processes)


def fail_over(brokers: list[Broker]) -> dict[str, Any]:
    """Kill node A while its consumer holds every message, and time the first delivery on node B. Raises: RunFailed."""
    a, b = brokers
    holder = PeerConnection(a.address, wire.CONSUME_CHANNEL)
    waiting = PeerConnection(b.address, wire.CONSUME_CHANNEL)
    try:
        holder.declare_queue(_QUEUE, durable=True)
        holder.consume(_QUEUE, "held", auto_ack=False, prefetch=_MESSAGES)
        publisher = PeerConnection(b.address, wire.PUBLISH_CHANNEL)
        publisher.select_confirms()
        body = bytes(100)
        publisher.socket.sendall(
            b"".join(wire.publish(publisher.channel, "", _QUEUE, body, persistent=True) for _ in range(_MESSAGES))
        )
        for _ in range(_MESSAGES):
            holder.await_method(wire.BASIC_DELIVER)
        waiting.consume(_QUEUE, "next", auto_ack=False, prefetch=_MESSAGES)
        waiting.socket.settimeout(_LIMIT_S)
        assert a.service is not None
        a.service.stop(killed=True)
        begun = time.monotonic()
        waiting.await_method(wire.BASIC_DELIVER)
        first_s = time.monotonic() - begun
        for _ in range(_MESSAGES - 1):
            waiting.await_method(wire.BASIC_DELIVER)
        publisher.close()
        return {"first_s": first_s, "all_s": time.monotonic() - begun}
    except TimeoutError:
        raise RunFailed(f"nothing was delivered within {_LIMIT_S:.0f} s of the kill") from None
    finally:
        for peer in (holder, waiting):
            peer.socket.close()


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a table.

    Shapes: `nodes` 0 is one broker with its own log; `publish_at` and `consume_at` are numbers of nodes.
    """

    name: str
    nodes: int = 0
    publish_at: tuple[int, ...] = (0,)
    consume_at: tuple[int, ...] = (0,)
    queues: int = 1
    size: int = SMALL
    messages: int = 0
    per_s: float | None = None


def cases(part: str, messages: int) -> list[Case]:
    """Return the cases of a part, in which the fastest paths move `messages` messages."""
    paths = [(name, nodes, at, size) for size in SIZES for name, (nodes, at) in PATHS.items()]
    if part == "paths":
        return [Case(name, nodes, consume_at=at, size=size, messages=messages) for name, nodes, at, size in paths]
    if part == "latency":
        few = messages // 50
        return [Case(name, nodes, (0,), at, 1, size, few, per_s=500.0) for name, nodes, at, size in paths]
    if part == "nodes":
        each = [(size, tuple(range(count))) for size in SIZES for count in (1, 2, 3, 4)]
        return [Case(_count(len(at), "node"), len(at), at, at, len(at), size, messages) for size, at in each]
    return [Case(_count(count, "queue"), 2, (0,), (1,), count, SMALL, messages) for count in QUEUES]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}s" if count > 1 else f"1 {noun}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run."""

    messages: int = 100_000
    rounds: int = 3


QUICK: Final = Plan(messages=10_000, rounds=1)


def measure(stage: Stage, options: argparse.Namespace, _suite: Suite) -> None:
    """Measure the cases of the parts, each part's cases in turn."""
    database = Database(stage.folder, stage.package if not options.interpreted else PROJECT, _LEASE_MS)
    stage.run.facts["postgresql"] = database.postgres.sql("SHOW server_version")
    try:
        for part in options.only:
            found = cases(part, stage.plan.messages) if part != "failover" else [Case("node killed with -9", 2)]
            works = {
                f"{part}: {one.name}, {one.size} B": partial(_measure, stage, part, one, database) for one in found
            }
            stage.in_turn(works, stage.plan.rounds)
    finally:
        database.close()


def _measure(stage: Stage, part: str, case: Case, database: Database, _round: int) -> None:
    """Add the figures of a case. Raises: NotStarted, RunFailed, Fault, OSError."""
    stage.add(part, _figures(part, case, database), name=case.name, size=case.size, count=max(case.nodes, case.queues))


def _figures(part: str, case: Case, database: Database) -> dict[str, Any]:
    with database.nodes(case.nodes) as brokers:
        if part == "failover":
            return fail_over(brokers)
        before_s, database_before_s = cpu_s(brokers), database.processes.usage().cpu_s
        figures = spread(
            [brokers[number].address for number in case.publish_at],
            [brokers[number].address for number in case.consume_at],
            messages=case.messages,
            size_bytes=case.size,
            queues=case.queues,
            per_s=case.per_s,
        )
        figures["broker_us"] = (cpu_s(brokers) - before_s) / case.messages * 1e6
        if case.nodes:
            figures["database_us"] = (database.processes.usage().cpu_s - database_before_s) / case.messages * 1e6
        return figures


def goals(run: Run) -> Iterator[Goal]:
    """Yield every goal that has figures."""
    for size, wanted in ((SMALL, 60_000), (LARGE, 20_000)):
        best = run.row("paths", name=_BEST, size=size)
        yield from Goal.at_least(f"A to B, {size} B, messages/s", best["per_s"], wanted)
        alone = run.row("paths", name="one broker, its own log", size=size)
        for name in ("cluster, same node", _BEST):
            row = run.row("paths", name=name, size=size)
            if row.runs and alone.runs:
                times = row["broker_us"] / alone["broker_us"]
                yield from Goal.at_most(f"{name}, {size} B, times one broker's CPU", times, 2)
    yield from Goal.at_most("fail-over, s", run.row("failover")["first_s"], _LEASE_MS / 1000 + 2)


def _table(run: Run, part: str) -> str:
    rows = run.rows(part)
    return table_of(rows, _COLUMNS.get(part, _COSTS))


def _machine(run: Run) -> str:
    return f"{machine_text(run.facts)} PostgreSQL {run.facts['postgresql']}."


def _draw(figure: Any, run: Run) -> bool:
    """Draw throughput and CPU time of the paths, the nodes and the queues."""
    rows = run.rows("paths", "peers")  # the run of 2026-11-23 has job queues, too
    (rates, costs), (nodes, queues) = figure.subplots(2, 2)
    names = list(dict.fromkeys(row["name"] for row in rows))
    for size, shift in ((SMALL, 0.2), (LARGE, -0.2)):
        found = [row for row in rows if row["size"] == size]
        at = [len(names) - names.index(row["name"]) + shift for row in found]
        drawn = rates.barh(at, [row["per_s"] for row in found], height=0.36, color=_COLOURS[size], label=f"{size:,} B")
        rates.bar_label(drawn, fmt=short, fontsize=7, padding=2)
    large = [row for row in rows if row["size"] == LARGE]
    at = [len(names) - names.index(row["name"]) for row in large]
    own, theirs = ([row[name] or 0.0 for row in large] for name in ("broker_us", "database_us"))
    costs.barh(at, own, height=0.6, color=ORANGE, label="brokers, or a library's processes")
    drawn = costs.barh(at, theirs, left=own, height=0.6, color=GREY, label="PostgreSQL")
    costs.bar_label(drawn, [short(one + other) for one, other in zip(own, theirs, strict=True)], fontsize=7, padding=2)
    costs.set_xscale("symlog", linthresh=100)
    for axes, title in ((rates, "messages per second"), (costs, f"CPU-µs per message of {LARGE:,} B")):
        axes.set_yticks([len(names) - number for number in range(len(names))], names, fontsize=8)
        axes.margins(x=0.15)
        plain(axes, title, legend=True)
    for axes, part, title in (
        (nodes, "nodes", "nodes, each with publisher and consumer"),
        (queues, "queues", "queues, from A to B"),
    ):
        for size in SIZES:
            found = [row for row in run.rows(part) if row["size"] == size]
            line(axes, found, "count", "per_s", color=_COLOURS[size], label=f"{size:,} B")
        if part == "queues":
            axes.set_xscale("log")
        axes.set_ylim(0)
        plain(axes, title, up="messages per second", legend=True)
    return bool(rows)


SUITE: Final = Suite(
    name="cluster",
    about=__doc__,
    parts=dict.fromkeys(_PARTS, lambda _: None),
    full=Plan(),
    quick=QUICK,
    limit_s=1200.0,
    tables={
        **{part: partial(_table, part=part) for part in _PARTS},
        "goals": lambda run: goals_table(goals(run)),
        "machine": _machine,
    },
    printed=(*_PARTS, "goals"),
    mark="bench-cluster",
    pictures={"cluster": ((11, 8), _draw)},
    measure=measure,
)
