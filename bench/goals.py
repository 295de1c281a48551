"""The goals of the benchmark, and the figures of other brokers on another machine of this kind.

That machine was faster or slower than the current one. RabbitMQ ran on both, so its two figures of a row give the
factor, and a goal that is a time or a rate is judged twice: unchanged, and scaled to the current machine.
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
    """One figure of one scenario: the goal, and the figures of RabbitMQ 3.10 and LavinMQ 1.0 elsewhere.

    Units: those of the figure's name. Shapes: a range is given by its middle.
    """

    scenario: str
    figure: str
    wanted: float
    rabbitmq: float
    lavinmq: float

    @property
    def more_is_better(self) -> bool:
        """Return whether the figure is a rate."""
        return self.figure.endswith("per_s")

    @property
    def of_size(self) -> bool:
        """Return whether the figure is a size, which does not depend on a machine's speed."""
        return self.figure.endswith("_bytes")


GOALS = (
    Goal("S1-16", "cpu_us", 1.2, 27.5, 1.65),
    Goal("S1-1024", "cpu_us", 2.5, 31.0, 3.75),
    Goal("S2-16", "cpu_us", 1.5, 31.5, 1.75),
    Goal("S2-1024", "cpu_us", 2.8, 38.5, 3.3),
    Goal("S3-16", "cpu_us", 2.5, 43.0, 1.6),
    Goal("S3-1024", "cpu_us", 4.0, 63.5, 3.4),
    Goal("S4-16", "cpu_us", 0.5, 13.0, 1.2),
    Goal("S4-1024", "cpu_us", 1.2, 15.0, 2.5),
    Goal("S5-10k", "cpu_us", 3.0, 65.0, 460.0),
    Goal("S5-100k", "cpu_us", 5.0, 79.0, 5160.0),
    Goal("S6-16", "p50_us", 51.5, 148.5, 51.5),
    Goal("S6-16", "p99_us", 650.0, 1650.0, 650.0),
    Goal("S7", "cpu_us", 2.5, 63.0, 1.5),
    Goal("S7", "rss_growth_bytes", 60e6, 2.7e9, 87e6),
    Goal("S7", "drain_per_s", 500e3, 66e3, 1.0e6),
    Goal("S7", "restart_s", 0.5, 6.0, 0.15),
    Goal("S8", "open_cpu_ms", 0.25, 2.0, 0.25),
    Goal("S8", "each_bytes", 10e3, 93e3, 41e3),
    Goal("S9", "cpu_us", 14.0, 97.0, 15.0),
    Goal("bindings", "declare_s", 3.0, 121.0, 9.0),
    Goal("bindings", "each_bytes", 500.0, 2600.0, 650.0),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and the measured figure. Units: `factor` is how much slower the current machine is, 1 if unknown."""

    goal: Goal
    found: float
    factor: float

    @property
    def wanted_here(self) -> float:
        """Return the goal scaled to the current machine."""
        goal = self.goal
        return goal.wanted / self.factor if goal.more_is_better else goal.wanted * self.factor

    @property
    def text(self) -> str:
        """Return whether the goal is reached, or by how much it is missed."""
        if self._misses(self.goal.wanted) <= 1:
            return "reached"
        over = self._misses(self.wanted_here)
        return "reached at this machine's speed" if over <= 1 else f"not reached: {over:.1f} times"

    @property
    def reached(self) -> bool:
        """Return whether the goal is reached, unchanged or scaled to the current machine."""
        return min(self._misses(self.goal.wanted), self._misses(self.wanted_here)) <= 1

    def _misses(self, wanted: float) -> float:
        return wanted / self.found if self.goal.more_is_better else self.found / wanted


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


def verdicts(ours: Mapping[str, Figures], peer: Mapping[str, Figures]) -> Iterator[Verdict]:
    """Yield a verdict for every goal that has a figure. Shapes: figures by scenario; the peer is RabbitMQ."""
    for goal in GOALS:
        found = ours.get(goal.scenario, {}).get(goal.figure)
        if found is not None:
            yield Verdict(goal, max(found, 1e-9), _factor(goal, peer.get(goal.scenario, {}).get(goal.figure)))


def standings(ours: Mapping[str, Figures], peer: Mapping[str, Figures]) -> Iterator[Standing]:
    """Yield the standing of every floor that has figures of both brokers."""
    for scenario, floor in FLOORS.items():
        found, theirs = (figures.get(scenario, {}).get("cpu_us") for figures in (ours, peer))
        if found and theirs:
            yield Standing(scenario, floor, theirs / found)


def _factor(goal: Goal, peer: float | None) -> float:
    if goal.of_size or not peer:
        return 1.0
    return goal.rabbitmq / peer if goal.more_is_better else peer / goal.rabbitmq
