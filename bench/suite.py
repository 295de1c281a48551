"""Runs scenarios against several brokers, interleaved, within a time limit, and stores every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench import machine
from bench.brokers import Broker, NotStarted
from bench.meter import Figures
from bench.scenario import Limits, NotOffered, Scenario
from broker.perf.crew import RunFailed
from broker.perf.faults import Fault

_CEILING_SECONDS = 0.5
_CEILING_MESSAGES = 2_000_000
_REST_SECONDS = 3.0
_LOOK_SECONDS = 0.25
_REST_SHARE = 0.1  # of a core, for the timers of all brokers

Start = Callable[[str], AbstractContextManager[Sequence[Broker]]]


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run. Units: `step_ns` is the machine's own speed right before it."""

    broker: str
    scenario: str
    round: int
    figures: Figures
    step_ns: float

    def record(self) -> dict[str, Any]:
        """Return the run for a JSON file."""
        return asdict(self)


@dataclass(slots=True)
class Suite:
    """The scenarios to measure and the completed runs. Shapes: `start` starts fresh brokers for a stage."""

    start: Start
    scenarios: Sequence[Scenario]
    limits: Limits
    deadline: float  # of the monotonic clock: no run begins after the deadline
    tell: Callable[[str], None]
    together: bool = False  # all scenarios share brokers: one may reuse memory that another freed
    skips: Callable[[Broker, Scenario], bool] = lambda _broker, _scenario: False
    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cut_short: bool = False

    def run_ceiling(self, relay: Broker) -> None:
        """Measure kernel and event loop alone, and the generator itself: every scenario against the bare relay."""
        limits = replace(self.limits, messages=_CEILING_MESSAGES, seconds=_CEILING_SECONDS)
        for scenario in self.scenarios:
            if scenario.relayed:
                self._one(relay, scenario, limits, 0)

    def run(self) -> None:
        """Measure every stage with its own brokers."""
        stages: dict[str, list[Scenario]] = {}
        for scenario in self.scenarios:
            stages.setdefault("all" if self.together else scenario.stage, []).append(scenario)
        for stage, scenarios in stages.items():
            if not self._late():
                with self.start(stage) as brokers:
                    self._run_stage(brokers, scenarios)

    def _run_stage(self, brokers: Sequence[Broker], scenarios: Sequence[Scenario]) -> None:
        """Measure the scenarios against the brokers in turn, A B C, B C A, until rounds or time are used up.

        The order rotates, and each run waits until the previous broker has cleaned up: RabbitMQ takes a while.
        """
        for number in range(self.limits.rounds):
            first = number % len(brokers) if brokers else 0
            for scenario in scenarios:
                for broker in [*brokers[first:], *brokers[:first]]:
                    if number < scenario.rounds and not self.skips(broker, scenario) and not self._late():
                        _rest(brokers)
                        self._one(broker, scenario, self.limits, number)

    def _late(self) -> bool:
        if time.monotonic() > self.deadline and not self.cut_short:
            self.cut_short = True
            self.tell("time limit reached")
        return self.cut_short

    def _one(self, broker: Broker, scenario: Scenario, limits: Limits, number: int) -> None:
        step_ns = machine.step_ns()
        begun = time.monotonic()
        try:
            figures = scenario.measure(broker, limits)
        except NotOffered:
            return
        except (RunFailed, Fault, NotStarted, OSError) as error:
            self.failures.append(f"{broker.name}, {scenario.name}: {error}")
            self.tell(f"{broker.name:18} {scenario.name:9} FAILED: {error}")
            return
        self.runs.append(Run(broker.name, scenario.name, number, figures, step_ns))
        self.tell(f"{broker.name:18} {scenario.name:9} {_said(figures)}  ({time.monotonic() - begun:.0f} s)")


def _rest(brokers: Sequence[Broker]) -> None:
    """Wait until the brokers started here are idle for a moment, or for a few seconds."""
    trees = [broker.processes for broker in brokers if broker.processes is not None]
    deadline = time.monotonic() + _REST_SECONDS
    spent_s = -1.0
    while trees and time.monotonic() < deadline:
        before_s, spent_s = spent_s, sum(tree.usage().cpu_s for tree in trees)
        if spent_s - before_s <= _REST_SHARE * _LOOK_SECONDS:
            return
        time.sleep(_LOOK_SECONDS)


def _said(figures: Figures) -> str:
    """Return the most significant figures in one line."""
    told = []
    for name, shape in _TOLD.items():
        if name in figures:
            told.append(shape.format(figures[name]))
    return "  ".join(told)


_TOLD = {
    "per_s": "{:11,.0f}/s",
    "cpu_us": "{:8.2f} CPU-us each",
    "p50_us": "p50 {:,.0f} us",
    "p99_us": "p99 {:,.0f} us",
    "drain_per_s": "drained {:,.0f}/s",
    "restart_s": "restart {:.2f} s",
    "crash_s": "after a crash {:.2f} s",
    "open_ms": "{:.2f} ms to open",
    "declare_s": "{:.1f} s to declare",
    "each_bytes": "{:,.0f} B each",
}
