"""Churn: creates and deletes connections, channels, queues, bindings or consumers repeatedly and measures the rate."""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.figures.numerals import rate_text
from broker.perf import wire
from broker.perf.conversation import Conversation, ScriptedRun
from broker.perf.crew import Interruption
from broker.perf.flags import add, add_scenario, add_switch, add_time, count, seconds_of
from broker.perf.histogram import Histogram
from broker.perf.machine import Stopwatch
from broker.perf.outcome import cost_figures, time_figures
from broker.perf.peer import Address, Ask, Script, closing, opening
from broker.perf.progress import RunProgress
from broker.perf.result import Figure, Result

KINDS: Final = ("connections", "channels", "queues", "bindings", "consumers")

_EXCHANGE: Final = "amq.topic"
_ON_A_QUEUE: Final = frozenset({"bindings", "consumers"})


def add_churn(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "churn")
    load = parser.add_argument_group("churn")
    load.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    add(load, "-w --workers", "N", count, "number of workers with a connection each, default 4", 4)
    add_time(load)
    add(load, "-C --cycles", "N", count, "make and remove N in total")
    add_switch(load, "--durable", "use durable queues, which are written to disk")


def run_churn(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Create and delete until the time is over.

    Raises: Fault, OSError if not even the first object could be created.
    """
    with Interruption() as interruption:
        return asyncio.run(Churn(options, progress, interruption, options.workers).run())


class Churn(ScriptedRun):
    """The workers of a run. Invariant: a worker that is told to stop deletes what it created."""

    async def run(self) -> Result:
        """Return the result. Raises: Fault if not even the first object could be created."""
        kind, quota = self.options.kind, CycleQuota(self.options.cycles, lambda: self.stopping)
        workers = [CycleWorker(kind, self.address, self.options.durable) for _ in range(self.options.workers)]
        talks: list[Conversation | None] = [None] * len(workers)
        if kind != "connections":
            talks = await asyncio.gather(*(self.dial(worker.begin()) for worker in workers))
        before, watch = self.usage(), Stopwatch()
        quota.until_s = time.monotonic() + (seconds_of(self.options) or math.inf)
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell(quota))
            await asyncio.gather(*(self._churn(*pair, quota) for pair in zip(workers, talks, strict=True)))
            took_s, busy_share, after = watch.seconds(), watch.busy_share(), self.usage()
            telling.cancel()
        held = [(talk, worker) for talk, worker in zip(talks, workers, strict=True) if talk is not None]
        await asyncio.gather(*(self.follow(talk, worker.end()) for talk, worker in held if talk in self.open))
        if not quota.cycles and self.fault is not None:
            raise self.fault
        figures = {
            "cycles_per_second": Figure(quota.cycles / took_s, "per_s"),
            **time_figures("make", quota.made),
            **time_figures("undo", quota.undone),
            **cost_figures(before, after, quota.cycles, cpu="broker_cpu_per_cycle"),
            "cycles": Figure(quota.cycles, kind),
        }
        failures = [] if self.fault is None else [f"after {quota.cycles:,} cycles: {self.fault}"]
        return self.result(figures, failures, busy_share)

    async def _churn(self, worker: CycleWorker, talk: Conversation | None, quota: CycleQuota) -> None:
        """Repeat a worker's cycle; a cycle of connections needs a new one whenever the last one is closed."""
        if talk is not None:
            await self.follow(talk, worker.cycles(quota))
        while self.options.kind == "connections" and quota.take():
            await self.dial(worker.connection(quota))

    async def _tell(self, quota: CycleQuota) -> None:
        while True:
            cycles, begun_s = quota.cycles, time.monotonic()
            await asyncio.sleep(self.options.interval)
            per_s = (quota.cycles - cycles) / (time.monotonic() - begun_s)
            self.progress.show(f"{self.options.kind} made and undone  {quota.cycles:,}  {rate_text(per_s)}")


@dataclass(slots=True)
class CycleQuota:
    """The cycles that may still begin, and the times of those that completed."""

    left: int | None
    stopping: Callable[[], bool]
    until_s: float = math.inf
    made: Histogram = field(default_factory=Histogram)
    undone: Histogram = field(default_factory=Histogram)
    cycles: int = 0

    def take(self) -> bool:
        """Return whether another cycle may begin, and count it."""
        if self.stopping() or time.monotonic() >= self.until_s or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True

    def cycle(self, make: Script, undo: Script) -> Script:
        """Run both scripts and record their times."""
        begun_ns = time.monotonic_ns()
        yield from make
        made_ns = time.monotonic_ns()
        yield from undo
        self.made.record(made_ns - begun_ns)
        self.undone.record(time.monotonic_ns() - made_ns)
        self.cycles += 1


class CycleWorker:
    """Creates and deletes one kind of object on a connection; any queue that it needs belongs to this worker alone."""

    def __init__(self, kind: str, address: Address, durable: bool) -> None:
        self._kind = kind
        self._address = address
        self._queue = f"slotmq-perf-churn-{secrets.token_hex(8)}"
        self._declare: Ask = wire.queue_declare(1, self._queue, durable=durable), wire.QUEUE_DECLARE_OK
        self._delete: Ask = wire.queue_delete(1, self._queue), wire.QUEUE_DELETE_OK
        self._number = 0

    def begin(self) -> Script:
        """Open the connection and create what the first cycle requires."""
        yield from opening(self._address, channels=(1,))
        if self._kind in _ON_A_QUEUE:
            yield self._declare

    def cycles(self, quota: CycleQuota) -> Script:
        """Create and delete until the quota is used up."""
        while quota.take():
            yield from quota.cycle(*(_said(ask) for ask in self._pair()))

    def connection(self, quota: CycleQuota) -> Script:
        """Open a connection and close it: one cycle."""
        return quota.cycle(opening(self._address), closing())

    def end(self) -> Script:
        """Delete what `begin` created, and close the connection."""
        if self._kind in _ON_A_QUEUE:
            yield self._delete
        yield from closing()

    def _pair(self) -> tuple[Ask, Ask]:
        self._number += 1
        match self._kind:
            case "channels":
                return (
                    (wire.method(2, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK),
                    (wire.close(2, wire.CHANNEL_CLOSE), wire.CHANNEL_CLOSE_OK),
                )
            case "queues":
                return self._declare, self._delete
            case "bindings":
                key = f"perf.{self._number}.*.#"  # always new keys, like those of short-lived clients
                return (
                    (wire.queue_bind(1, self._queue, _EXCHANGE, key), wire.QUEUE_BIND_OK),
                    (wire.queue_unbind(1, self._queue, _EXCHANGE, key), wire.QUEUE_UNBIND_OK),
                )
        tag = wire.short_string("churn")
        return (
            (wire.basic_consume(1, self._queue, "churn", auto_ack=True), wire.BASIC_CONSUME_OK),
            (wire.method(1, wire.BASIC_CANCEL, tag + b"\x00"), wire.BASIC_CANCEL_OK),
        )


def _said(ask: Ask) -> Script:
    yield ask
