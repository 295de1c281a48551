"""Runs scenarios against several brokers, interleaved, within a time limit, and keeps every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench import machine
from bench.brokers import Broker
from bench.crew import RunFailed
from bench.faults import Fault
from bench.run import Run, measure
from bench.scenario import Limits, Scenario

_CEILING_SECONDS = 0.5
_CEILING_MESSAGES = 2_000_000


@dataclass(slots=True)
class Suite:
    """What is measured, and what has been so far.

    Units: `steps_ns` holds one reading of the machine's own speed per run, in the order of `runs`.
    """

    brokers: Sequence[Broker]
    scenarios: Sequence[Scenario]
    limits: Limits
    repeats: int
    deadline: float  # of the monotonic clock: no run begins after it
    tell: Callable[[str], None]
    runs: list[Run] = field(default_factory=list)
    steps_ns: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cut_short: bool = False

    def run_ceiling(self, relay: Broker) -> None:
        """Measure the generator against the bare relay, once per scenario."""
        limits = replace(self.limits, messages=_CEILING_MESSAGES, seconds=_CEILING_SECONDS)
        for scenario in self.scenarios:
            self._one(relay, scenario, limits)

    def run(self) -> None:
        """Measure every scenario against every broker in turn, A B A B, until repeats or time are used up."""
        for repeat in range(self.repeats):
            for scenario in self.scenarios:
                for broker in self.brokers:
                    if time.monotonic() > self.deadline:
                        self.cut_short = True
                        self.tell(f"time limit reached in round {repeat + 1}")
                        return
                    self._one(broker, scenario, self.limits)

    def _one(self, broker: Broker, scenario: Scenario, limits: Limits) -> None:
        step_ns = machine.step_ns()
        try:
            run = measure(broker, scenario, limits)
        except (RunFailed, Fault, OSError) as error:
            self.failures.append(f"{broker.name}, {scenario.name}: {error}")
            self.tell(f"{broker.name:9} {scenario.name:16} FAILED: {error}")
            return
        self.runs.append(run)
        self.steps_ns.append(step_ns)
        cpu = f"{run.cpu_us:8.2f} CPU-us per message" if run.cpu_us is not None else "   CPU time not visible"
        self.tell(f"{broker.name:9} {scenario.name:16} {run.messages:9,} messages {run.rate:11,.0f}/s {cpu}")
