"""Churn: creates and deletes connections, channels, queues, bindings or consumers repeatedly and measures the rate."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from broker.figures.numerals import rate_text
from broker.perf.account import Account, Stopwatch, spent_us, times_us
from broker.perf.conversation import Conversation, Script, Switchboard
from broker.perf.cycles import KINDS, CycleQuota, CycleWorker
from broker.perf.descriptors import make_room
from broker.perf.faults import Fault, Refusal
from broker.perf.flags import add_scenario
from broker.perf.histogram import Histogram
from broker.perf.interruption import Interruption
from broker.perf.progress import RunProgress
from broker.perf.quantities import count, duration
from broker.perf.result import Figure, Result

_TURN_S: Final = 0.2
_SECONDS: Final = 10.0


def add_churn(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "churn", "connections, channels, queues, bindings or consumers made and undone")
    load = parser.add_argument_group("churn")
    load.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    load.add_argument(
        "-w",
        "--workers",
        metavar="N",
        type=count,
        default=4,
        help="number of workers with a connection each, default 4",
    )
    load.add_argument("-z", "--time", metavar="T", type=duration, help="stop after T (default 10s; 0: at Ctrl-C)")
    load.add_argument("-C", "--cycles", metavar="N", type=count, help="make and remove N in total")
    load.add_argument("--durable", action="store_true", help="use durable queues, which are written to disk")


def run_churn(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Create and delete until the time is over.

    Raises: Fault, OSError if not even the first object could be created.
    """
    make_room(options.workers + 1)
    account = Account(options)
    with Interruption() as interruption:
        return Churn(options, account, progress, interruption).run()


class Churn:
    """The workers of a run.

    Invariant: a worker that is told to stop deletes what it created.
    """

    def __init__(
        self, options: argparse.Namespace, account: Account, progress: RunProgress, interruption: Interruption
    ) -> None:
        self._options = options
        self._account = account
        self._progress = progress
        self._board = Switchboard()
        self._quota = CycleQuota(options.cycles, 0.0, interruption, Histogram(), Histogram())
        self._fault: Fault | None = None  # the first
        self._told_s, self._told_cycles = 0.0, 0

    def run(self) -> Result:
        """Return the result.

        Raises: Fault, OSError if not even the first object could be created.
        """
        options, quota = self._options, self._quota
        workers = [CycleWorker(options.kind, self._account.address, options.durable) for _ in range(options.workers)]
        try:
            talks = [self._dial(worker) for worker in workers] if options.kind != "connections" else []
            self._until_idle(talks)
            before, watch = self._account.usage(), Stopwatch()
            quota.until_s = time.monotonic() + self._seconds()
            if options.kind == "connections":
                self._redial(workers)
            else:
                self._follow({talk: worker.cycles(quota) for talk, worker in zip(talks, workers, strict=True)})
            took_s, busy_share, after = watch.seconds(), watch.busy_share(), self._account.usage()
            if not quota.cycles and self._fault is not None:
                raise self._fault
            self._follow({talk: worker.end() for talk, worker in zip(talks, workers, strict=bool(talks))})
        finally:
            self._board.close()
        figures = {
            "cycles_per_second": Figure(quota.cycles / took_s, "per_s"),
            **times_us("make", quota.made),
            **times_us("undo", quota.undone),
            "broker_cpu_per_cycle": spent_us(before, after, quota.cycles),
            "cycles": Figure(quota.cycles, options.kind),
        }
        failures = [] if self._fault is None else [f"after {quota.cycles:,} cycles: {self._fault}"]
        return self._account.result(figures, failures, busy_share)

    def _seconds(self) -> float:
        if self._options.time is None:
            return _SECONDS if self._options.cycles is None else math.inf
        return self._options.time or math.inf

    def _dial(self, worker: CycleWorker) -> Conversation:
        return self._board.dial(self._account.address, worker.begin())

    def _follow(self, scripts: Mapping[Conversation, Script]) -> None:
        for talk, script in scripts.items():
            if talk.fault is None:
                self._board.follow(talk, script)
        self._until_idle(scripts)

    def _until_idle(self, talks: Iterable[Conversation]) -> None:
        """Wait until no conversation is busy; the first fault ends all others."""
        while any(talk.busy for talk in talks):
            self._turn()
        self._note(talks)

    def _redial(self, workers: Sequence[CycleWorker]) -> None:
        """Let each worker open a connection whenever its last one is closed."""
        busy: dict[Conversation, CycleWorker] = {}
        idle = list(workers)
        while busy or idle:
            while idle and self._quota.take():
                worker = idle.pop()
                try:
                    talk = self._board.dial(self._account.address, worker.connection(self._quota))
                except OSError as error:
                    self._fault = self._fault or Refusal(f"no more connections: {error.strerror or error}")
                    self._quota.left = 0
                    break
                busy[talk] = worker
            if not busy:
                return
            self._turn()
            for talk in [talk for talk in busy if not talk.busy]:
                self._note([talk])
                idle.append(busy.pop(talk))

    def _turn(self) -> None:
        self._note(self._board.turn(_TURN_S))
        now_s, cycles = time.monotonic(), self._quota.cycles
        if now_s - self._told_s >= self._options.interval:
            if self._told_s:
                per_s = (cycles - self._told_cycles) / (now_s - self._told_s)
                self._progress.show(f"{self._options.kind} made and undone  {cycles:,}  {rate_text(per_s)}")
            self._told_s, self._told_cycles = now_s, cycles

    def _note(self, talks: Iterable[Conversation]) -> None:
        for talk in talks:
            if talk.fault is not None and self._fault is None:
                self._fault = talk.fault
                self._quota.left = 0  # the other workers finish their cycle and stop
