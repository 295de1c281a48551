"""The contents of a stored run: the medians of every broker in every scenario, and the physical limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.columns import kind
from bench.goals import Standing, Verdict, standings, verdicts
from bench.meter import Figures

COMPILED, INTERPRETED, PEER, CEILING = "SlotMQ", "SlotMQ interpreted", "RabbitMQ", "relay"
_MEASURES: Mapping[str, str] = {
    "S6": "p50_us",
    "S8": "open_cpu_ms",
    "S10": "p50_us",
    "lone": "p50_us",
    "bindings": "declare_s",
}


def measure_of(scenario: str) -> str:
    """Return the figure by which runs of a scenario are compared; CPU time by default."""
    return _MEASURES.get(kind(scenario), "cpu_us")


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
        """Return the measurements of a stored run."""
        return cls(
            content["titles"],
            _beside_relay(medians(content["runs"])),
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
        """Return the judged broker: SlotMQ as a wheel ships it, else interpreted, else any measured broker."""
        others = [name for name in self.brokers if name not in (COMPILED, INTERPRETED, PEER)]
        return next((name for name in (COMPILED, INTERPRETED, *others) if name in self.brokers), COMPILED)

    def figures(self, broker: str, scenario: str) -> Figures:
        """Return the medians of a broker in a scenario, empty if it was not measured."""
        found = (line.figures for line in self.lines if (line.broker, line.scenario) == (broker, scenario))
        return next(found, {})

    def of_broker(self, broker: str) -> dict[str, Figures]:
        """Return all medians of a broker, by scenario."""
        return {line.scenario: line.figures for line in self.lines if line.broker == broker}

    def times_of_peer(self, broker: str, scenario: str) -> float | None:
        """Return the ratio of RabbitMQ's figure to a broker's, None if either is unknown."""
        measure = measure_of(scenario)
        own, peer = (self.figures(name, scenario).get(measure) for name in (broker, PEER))
        return peer / own if own and peer else None

    def verdicts(self) -> list[Verdict]:
        """Return the verdict of every goal that has figures."""
        return list(verdicts(self.of_broker(self.ours)))

    def standings(self) -> list[Standing]:
        """Return the standing of every floor that has figures."""
        return list(standings(self.of_broker(self.ours), self.of_broker(PEER)))


def medians(runs: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Return the medians of every broker and scenario, in the order in which they were first run."""
    groups: dict[tuple[str, str], list[Figures]] = {}
    for run in runs:
        groups.setdefault((run["scenario"], run["broker"]), []).append(run["figures"])
    return [Line(broker, scenario, len(group), _medians(group)) for (scenario, broker), group in groups.items()]


def _beside_relay(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, with the latency of each broker as a multiple of the bare relay's where both are known."""
    relay_us = {
        line.scenario: line.figures["p50_us"] for line in lines if line.broker == CEILING and "p50_us" in line.figures
    }
    return [
        replace(line, figures={**line.figures, "relay_times": line.figures["p50_us"] / relay_us[line.scenario]})
        if line.scenario in relay_us and "p50_us" in line.figures
        else line
        for line in lines
    ]


def _medians(group: Sequence[Figures]) -> Figures:
    names = dict.fromkeys(name for figures in group for name in figures)
    return {name: median(figures[name] for figures in group if name in figures) for name in names}
