"""Holds what a kept run says: the medians of every broker in every scenario, with the physical limits beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.goals import Standing, Verdict, standings, verdicts
from bench.meter import Figures

COMPILED, INTERPRETED, PEER, CEILING = "SlotMQ", "SlotMQ interpreted", "RabbitMQ", "relay"
MEASURES: Mapping[str, str] = {"S6": "p50_us", "S8": "open_cpu_ms", "bindings": "declare_s"}
"""What brokers are compared by; CPU time where nothing is said."""


@dataclass(frozen=True, slots=True)
class Line:
    """The medians of one broker in one scenario."""

    broker: str
    scenario: str
    runs: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of the benchmark. Shapes: `titles`, `append` and `least` by scenario, all in the order of the report."""

    titles: dict[str, str]
    lines: Sequence[Line]
    append: dict[str, Figures]
    least: dict[str, Figures]
    steps_ns: Sequence[float]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Measured:
        """Return what a kept run says."""
        return cls(
            content["titles"],
            medians(content["runs"]),
            content["append_limits"],
            content["least_calls"],
            [run["step_ns"] for run in content["runs"]],
        )

    @property
    def brokers(self) -> list[str]:
        """Return the brokers in the order in which they were measured, without the relay."""
        return list(dict.fromkeys(line.broker for line in self.lines if line.broker != CEILING))

    @property
    def ours(self) -> str:
        """Return what is judged: SlotMQ as a wheel ships it, interpreted without that, or whatever was measured."""
        others = [name for name in self.brokers if name not in (COMPILED, INTERPRETED, PEER)]
        return next((name for name in (COMPILED, INTERPRETED, *others) if name in self.brokers), COMPILED)

    def figures(self, broker: str, scenario: str) -> Figures:
        """Return the medians of a broker in a scenario, none when it was not measured."""
        found = (line.figures for line in self.lines if (line.broker, line.scenario) == (broker, scenario))
        return next(found, {})

    def of_broker(self, broker: str) -> dict[str, Figures]:
        """Return all medians of a broker, by scenario."""
        return {line.scenario: line.figures for line in self.lines if line.broker == broker}

    def times_of_peer(self, broker: str, scenario: str) -> float | None:
        """Return how many times less than RabbitMQ a broker takes, None when one of the two is not known."""
        measure = MEASURES.get(scenario.partition("-")[0], "cpu_us")
        own, peer = (self.figures(name, scenario).get(measure) for name in (broker, PEER))
        return peer / own if own and peer else None

    def verdicts(self) -> list[Verdict]:
        """Return how every goal stands that there are figures for."""
        return list(verdicts(self.of_broker(self.ours), self.of_broker(PEER)))

    def standings(self) -> list[Standing]:
        """Return how every floor stands that there are figures for."""
        return list(standings(self.of_broker(self.ours), self.of_broker(PEER)))


def medians(runs: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Return the medians of every broker and scenario, in the order in which they were first run."""
    groups: dict[tuple[str, str], list[Figures]] = {}
    for run in runs:
        groups.setdefault((run["scenario"], run["broker"]), []).append(run["figures"])
    return [Line(broker, scenario, len(group), _medians(group)) for (scenario, broker), group in groups.items()]


def _medians(group: Sequence[Figures]) -> Figures:
    names = dict.fromkeys(name for figures in group for name in figures)
    return {name: median(figures[name] for figures in group if name in figures) for name in names}
