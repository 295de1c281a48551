"""A cluster on PostgreSQL (from a wheel, with fsync) beside a single broker, and its fail-over.

Each round of a case runs on a new cluster with a new database. "brokers" is the CPU time of all nodes.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Self

from bench.brokers import Broker, slotmq
from bench.picture import BLUE, GREY, ORANGE, line, plain
from bench.run import Run
from bench.stage import Stage, extent
from bench.suites import Suite
from bench.tables import Column, Goal, goals_table, machine_text, rows_table
from broker.figures.numerals import duration_text, short_text
from broker.perf import wire
from broker.perf.conductor import stage as conducted
from broker.perf.faults import RunFailed
from broker.perf.machine import ProcessTree
from broker.perf.parts import Load, Share
from broker.perf.peer import Address, PeerConnection
from broker.perf.progress import RunProgress
from broker.perf.result import Latency
from broker.perf.scenarios.messages import add_throughput, addressed
from tools.postgres_server import PostgresServer

_MESSAGES = 100
_WINDOW = 1000  # unconfirmed messages of a publisher, and unacked ones of a consumer
_ACK_EVERY = 100
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
"""Of each path: the number of nodes, 0 for a single broker, and the numbers of the nodes with consumers."""
QUEUES: Final = (1, 10, 100, 1000)
_NAME: Final = (Column("", "name", str), Column("bytes", "size", "{:,}".format))
_TIMES: Final = (Column("p50", "p50_us", duration_text), Column("p99", "p99_us", duration_text))
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
        Column("confirm p50", "confirm_p50_us", duration_text),
        Column("confirm p99", "confirm_p99_us", duration_text),
    ),
    "failover": (
        _NAME[0],
        Column("first delivery", "first_s", "{:.2f} s".format),
        Column("all 100 messages", "all_s", "{:.2f} s".format),
    ),
}
_PARTS: Final = ("paths", "latency", "nodes", "queues", "failover")


class Database:
    """The PostgreSQL server of one run of the suite."""

    def __init__(self, stage: Stage, postgres: PostgresServer) -> None:
        self.stage = stage
        self.postgres = postgres

    @classmethod
    @contextmanager
    def of(cls, stage: Stage) -> Iterator[Self]:
        """Run a server, and record its version in the facts of the run."""
        with PostgresServer(durable=True, options=OPTIONS).start() as postgres:
            stage.run.facts["postgresql"] = postgres.sql("SHOW server_version")
            yield cls(stage, postgres)

    def cpu_s(self) -> float:
        """Return the CPU time that the server has used so far."""
        return ProcessTree(self.postgres.pid).usage().cpu_s

    def new_url(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"bench_{secrets.token_hex(4)}"
        self.postgres.sql(f"CREATE DATABASE {name}")
        return self.postgres.url.rpartition("/")[0] + f"/{name}"

    @contextmanager
    def nodes(self, count: int) -> Iterator[list[Broker]]:
        """Run a cluster of `count` nodes on a new database; 0 is a single broker without a cluster.

        Raises: BrokerFailed.
        """
        folder, package = self.stage.new_folder(), self.stage.package
        with ExitStack() as running:
            if not count:
                yield [running.enter_context(slotmq(folder, package=package))]
                return
            url = self.new_url()
            brokers = []
            for number in range(count):
                name = chr(ord("a") + number)
                cluster = {"URL": url, "NODE": name, "LEASE_MS": str(_LEASE_MS)}
                variables = {f"SLOTMQ_CLUSTER__{field}": text for field, text in cluster.items()}
                started = slotmq(folder / name, package=package, name=f"node {name}", variables=variables)
                brokers.append(running.enter_context(started))
            yield brokers


def cpu_s(brokers: Sequence[Broker]) -> float:
    """Return the CPU time that the brokers have used so far."""
    return sum(broker.processes.usage().cpu_s for broker in brokers if broker.processes)


def fail_over(brokers: list[Broker]) -> dict[str, Any]:
    """Kill node A while its consumer has all messages unacked; time the first delivery on node B. Raises: RunFailed."""
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
class SpreadLoad(Load):
    """A load whose processes connect to given nodes in turn."""

    publish_at: tuple[Address, ...] = ()
    consume_at: tuple[Address, ...] = ()

    def publish_shares(self) -> list[Share]:
        return _placed(Load.publish_shares(self), self.publish_at)

    def consume_shares(self) -> list[Share]:
        return _placed(Load.consume_shares(self), self.consume_at)


def _placed(shares: Sequence[Share], addresses: Sequence[Address]) -> list[Share]:
    """Return the shares, each connecting to the next of the addresses in turn."""
    at = [addresses[number % len(addresses)] for number in range(len(shares))]
    return [Share(replace(one.load, address=address), one.numbers) for one, address in zip(shares, at, strict=True)]


def spread(
    publish_at: Sequence[Address],
    consume_at: Sequence[Address],
    *,
    messages: int,
    size_bytes: int,
    queues: int = 1,
    per_s: float | None = None,
) -> dict[str, Any]:
    """Publish persistent messages with confirms, consume all of them with acks, and return the figures of the run.

    Raises: RunFailed when a message was lost.
    """
    words = ["-C", str(messages), "-s", str(size_bytes), "-c", str(_WINDOW), "-f", "persistent"]
    words += ["--queues", str(queues)]
    words += ["-q", str(_WINDOW), "-A", str(_ACK_EVERY) if per_s is None else "1"]
    words += ["-x", str(len(publish_at)), "-y", str(max(len(consume_at), 1))]
    words += [] if per_s is None else ["-r", str(per_s / len(publish_at))]
    parser = argparse.ArgumentParser()
    add_throughput(parser.add_subparsers())
    options = parser.parse_args(["throughput", *words])
    topology, load = addressed(options)
    own = {field.name: getattr(load, field.name) for field in fields(Load)}
    own |= {"address": publish_at[0], "processes": max(len(publish_at), len(consume_at)), "seconds": None}
    placed = SpreadLoad(**own, publish_at=tuple(publish_at), consume_at=tuple(consume_at))
    options.uri = publish_at[0]
    with conducted(options, topology, RunProgress(quiet=True)) as here:
        outcome = here.run(placed)
    if outcome.failures:
        raise RunFailed(outcome.failures[0])
    totals = outcome.totals(size_bytes)
    latency, confirms = Latency.of(outcome.due_times), Latency.of(outcome.confirm_times)
    return {
        "per_s": totals.delivered / outcome.seconds,
        "p50_us": latency and latency.p50,
        "p99_us": latency and latency.p99,
        "confirm_p50_us": confirms and confirms.p50,
        "confirm_p99_us": confirms and confirms.p99,
    }


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
    if part == "failover":
        return [Case("node killed with -9", 2)]
    return [Case(_count(count, "queue"), 2, (0,), (1,), count, SMALL, messages) for count in QUEUES]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}s" if count > 1 else f"1 {noun}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run."""

    messages: int = extent(100_000, 10_000)
    rounds: int = extent(3, 1)


def measure(database: Database, part: str) -> None:
    """Measure the cases of a part in turn."""
    plan = database.stage.plan
    found = cases(part, plan.messages)

    def measured(case: Case, _round: int) -> None:
        key = {"name": case.name, "size": case.size, "count": max(case.nodes, case.queues)}
        database.stage.add(part, _figures(part, case, database), **key)

    works = {f"{part}: {one.name}, {one.size} B": partial(measured, one) for one in found}
    database.stage.in_turn(works, plan.rounds)


def _figures(part: str, case: Case, database: Database) -> dict[str, Any]:
    with database.nodes(case.nodes) as brokers:
        if part == "failover":
            return fail_over(brokers)
        before_s, database_before_s = cpu_s(brokers), database.cpu_s()
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
            figures["database_us"] = (database.cpu_s() - database_before_s) / case.messages * 1e6
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


def _machine(run: Run) -> str:
    return f"{machine_text(run.facts)} PostgreSQL {run.facts['postgresql']}."


def _draw(figure: Any, run: Run) -> bool:
    rows = run.rows("paths")
    (rates, costs), (nodes, queues) = figure.subplots(2, 2)
    names = list(dict.fromkeys(row["name"] for row in rows))
    for size, shift in ((SMALL, 0.2), (LARGE, -0.2)):
        found = [row for row in rows if row["size"] == size]
        at = [len(names) - names.index(row["name"]) + shift for row in found]
        drawn = rates.barh(at, [row["per_s"] for row in found], height=0.36, color=_COLOURS[size], label=f"{size:,} B")
        rates.bar_label(drawn, fmt=short_text, fontsize=7, padding=2)
    large = [row for row in rows if row["size"] == LARGE]
    at = [len(names) - names.index(row["name"]) for row in large]
    own, theirs = ([row[name] or 0.0 for row in large] for name in ("broker_us", "database_us"))
    costs.barh(at, own, height=0.6, color=ORANGE, label="brokers")
    drawn = costs.barh(at, theirs, left=own, height=0.6, color=GREY, label="PostgreSQL")
    costs.bar_label(
        drawn, [short_text(one + other) for one, other in zip(own, theirs, strict=True)], fontsize=7, padding=2
    )
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
    parts={part: partial(measure, part=part) for part in _PARTS},
    plan=Plan(),
    limit_s=1200.0,
    tables={
        **{part: rows_table([part], _COLUMNS.get(part, _COSTS)) for part in _PARTS},
        "goals": lambda run: goals_table(goals(run)),
        "machine": _machine,
    },
    printed=(*_PARTS, "goals"),
    mark="bench-cluster",
    pictures={"cluster": ((11, 8), _draw)},
    prepare=Database.of,
)
