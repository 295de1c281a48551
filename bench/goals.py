"""The goals of the benchmark, and the figures of two other brokers on another machine.

Those figures were measured there in 2026-11 beside SlotMQ; docs/performance.md has newer ones. A goal is judged as it
stands, whatever the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.meter import Figures

FLOORS = {
    **dict.fromkeys(("S1-16", "S2-16", "S3-16", "S4-16"), 15.0),
    **dict.fromkeys(("S1-1024", "S2-1024", "S3-1024", "S4-1024", "S5-10k", "S5-100k"), 10.0),
}
"""The minimum ratio to RabbitMQ's messages per broker CPU-second."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure of one scenario: the goal, and the figures of two other brokers elsewhere, None if unknown.

    Units: those of the figure's name.
    """

    scenario: str
    figure: str
    wanted: float
    rabbitmq: float | None = None
    lavinmq: float | None = None

    @property
    def more_is_better(self) -> bool:
        """Return whether the figure is a rate."""
        return self.figure.endswith("per_s")

    @property
    def of_size(self) -> bool:
        """Return whether the figure is a size."""
        return self.figure.endswith("_bytes")


_LATENCY_US = 50_000.0  # p99 from sent until delivered, beside a publisher at full speed
_NAGLE_US = 2_000.0

GOALS = (
    Goal("S1-16", "cpu_us", 1.51),
    Goal("S1-1024", "cpu_us", 3.5),
    Goal("S2-16", "cpu_us", 3.0, 64.0, 3.0),
    Goal("S2-1024", "cpu_us", 5.9, 65.0, 5.9),
    Goal("S3-16", "cpu_us", 1.8, 84.0, 3.1),
    Goal("S3-1024", "cpu_us", 3.5, 78.0, 6.1),
    Goal("S4-16", "cpu_us", 0.6),
    Goal("S4-1024", "cpu_us", 1.2),
    Goal("S1-16-full", "cpu_us", 1.51, 29.0, 1.51),
    Goal("S1-1024-full", "cpu_us", 3.5, 55.0, 3.5),
    Goal("S4-16-full", "cpu_us", 0.6, 27.0, 1.1),
    Goal("S4-1024-full", "cpu_us", 1.2, 25.0, 2.7),
    *(Goal(f"{kind}-{size}-full", "p99_us", _LATENCY_US) for kind in ("S1", "S2", "S4") for size in (16, 1024)),
    Goal("S2-204800", "cpu_us", 120.0),
    *(Goal(f"S2-{size}", "held_times", 2.0) for size in (204_800, 1 << 20, 16 << 20)),
    Goal("S5-10k", "cpu_us", 3.0),
    Goal("S5-100k", "cpu_us", 5.0),
    Goal("S6-16", "cpu_us", 70.0, 168.0, 82.0),
    Goal("S6-16", "relay_times", 1.3),
    Goal("S7", "cpu_us", 2.5),
    Goal("S7", "rss_growth_bytes", 60e6),
    Goal("S7", "drain_per_s", 500e3),
    Goal("S7", "restart_s", 0.5),
    Goal("S8", "open_cpu_ms", 0.3),
    Goal("S8", "each_bytes", 5500.0),
    Goal("S9", "cpu_us", 12.0, 56.0, 18.7),
    Goal("S10", "beyond_us", 100.0),
    Goal("lone-nagle-connect", "p50_us", _NAGLE_US),
    Goal("lone-nagle-get", "p50_us", _NAGLE_US),
    Goal("bindings", "declare_s", 2.0),
    Goal("bindings", "each_bytes", 500.0),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and the measured figure."""

    goal: Goal
    found: float

    @property
    def text(self) -> str:
        """Return whether the goal is reached, or by how much it is missed."""
        return "reached" if self.reached else f"not reached: {self._misses:.1f} times"

    @property
    def reached(self) -> bool:
        """Return whether the goal is reached."""
        return self._misses <= 1

    @property
    def _misses(self) -> float:
        return self.goal.wanted / self.found if self.goal.more_is_better else self.found / self.goal.wanted


@dataclass(frozen=True, slots=True)
class Standing:
    """A scenario's figure and its floor."""

    scenario: str
    floor: float
    found: float

    @property
    def holds(self) -> bool:
        """Return whether the figure is at or above the floor."""
        return self.found >= self.floor


def verdicts(ours: Mapping[str, Figures]) -> Iterator[Verdict]:
    """Yield a verdict for every goal that has a figure. Shapes: figures by scenario."""
    for goal in GOALS:
        found = ours.get(goal.scenario, {}).get(goal.figure)
        if found is not None:
            yield Verdict(goal, max(found, 1e-9))


def standings(ours: Mapping[str, Figures], peer: Mapping[str, Figures]) -> Iterator[Standing]:
    """Compare SlotMQ with RabbitMQ in each scenario that has a floor and figures of both."""
    for scenario, floor in FLOORS.items():
        found, theirs = (figures.get(scenario, {}).get("cpu_us") for figures in (ours, peer))
        if found and theirs:
            yield Standing(scenario, floor, theirs / found)
