"""Turns runs into medians, ratios and the verdict on the goal, and prints them as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.run import Run
from bench.scenario import Scenario

GOAL_RATIO = 5.0
CEILING = "relay"
OURS, PEER = "SlotMQ", "RabbitMQ"


@dataclass(frozen=True, slots=True)
class Line:
    """The medians of one broker in one scenario."""

    broker: str
    scenario: str
    runs: int
    rate: float
    cpu_us: float | None
    per_cpu_s: float | None
    peak_rss_bytes: float | None
    disk_bytes: float
    generator_us: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the goal is reached: None when it could not be judged, `text` says it in a sentence."""

    reached: bool | None
    text: str


def lines(runs: Iterable[Run]) -> list[Line]:
    """Return the medians of every broker and scenario, in the order in which they were first run."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.broker), []).append(run)
    return [
        Line(
            broker=broker,
            scenario=scenario,
            runs=len(group),
            rate=median(run.rate for run in group),
            cpu_us=_median(run.cpu_us for run in group),
            per_cpu_s=_median(run.per_cpu_s for run in group),
            peak_rss_bytes=_median(run.peak_rss_bytes for run in group),
            disk_bytes=median(run.disk_bytes for run in group),
            generator_us=median(max(run.publisher_cpu_s, run.consumer_cpu_s) / run.messages * 1e6 for run in group),
        )
        for (scenario, broker), group in groups.items()
    ]


def ratio(table: Sequence[Line], scenario: str) -> float | None:
    """Return our messages per broker CPU-second over the peer's, as the ratio of the medians."""
    found = {line.broker: line.per_cpu_s for line in table if line.scenario == scenario}
    ours, peer = found.get(OURS), found.get(PEER)
    return ours / peer if ours and peer else None


def verdict(table: Sequence[Line], scenarios: Sequence[Scenario], *, synced: bool, peer_installed: bool) -> Verdict:
    """Return whether the goal of the project is reached by these figures, and say so plainly."""
    goal = f"Goal: at least {GOAL_RATIO:g} times {PEER}'s messages per broker CPU-second, persistent, confirmed, fsync"
    if not synced:
        return Verdict(None, f"{goal}: NOT JUDGED, {OURS} ran without fsync.")
    judged = [scenario for scenario in scenarios if scenario.persistent and scenario.confirms]
    ratios = {scenario.name: ratio(table, scenario.name) for scenario in judged}
    missing = [name for name, value in ratios.items() if value is None]
    if not judged or missing:
        why = "no persistent scenario was run" if not judged else f"no figures of both brokers for {', '.join(missing)}"
        if not peer_installed:
            why = "rabbitmq-server is not installed here"
        return Verdict(None, f"{goal}: NOT JUDGED, {why}.")
    said = ", ".join(f"{name} {value:.1f} times" for name, value in ratios.items())
    reached = all(value is not None and value >= GOAL_RATIO for value in ratios.values())
    return Verdict(reached, f"{goal}: {'REACHED' if reached else 'NOT REACHED'} ({said}).")


def table_text(table: Sequence[Line], scenarios: Sequence[Scenario]) -> str:
    """Return one block per scenario, a line per broker, the ceiling of the generator, and the ratio."""
    blocks = []
    for scenario in scenarios:
        rows = [line for line in table if line.scenario == scenario.name]
        if not rows:
            continue
        block = [
            f"{scenario.name}: {scenario.title}",
            f"  {'':12}{'messages/s':>12}{'CPU-us/msg':>12}{'msgs/CPU-s':>12}{'peak RSS':>11}{'disk':>11}{'runs':>6}",
        ]
        block += [_row(line) for line in sorted(rows, key=lambda line: line.broker == CEILING)]
        found = ratio(table, scenario.name)
        if found is not None:
            block.append(f"  {OURS} : {PEER}, messages per broker CPU-second (medians): {found:.1f}")
        blocks.append("\n".join(block))
    return "\n\n".join(blocks)


def ceiling_text(table: Sequence[Line]) -> str:
    """Return what the generator itself can do, so that the brokers' figures can be judged."""
    rows = [line for line in table if line.broker == CEILING]
    if not rows:
        return "The generator's own ceiling was not measured."
    shares = []
    for row in rows:
        fastest = max((line.rate for line in table if line.scenario == row.scenario and line is not row), default=0.0)
        shares.append(f"{row.scenario} {row.rate:,.0f}/s" + (f" ({fastest / row.rate:.0%} used)" if fastest else ""))
    return "The generator's own ceiling, against a bare relay of the same bytes: " + ", ".join(shares) + "."


def steadiness_text(steps_ns: Sequence[float]) -> str:
    """Return how much the machine's own speed moved between runs."""
    if not steps_ns:
        return ""
    spread = max(steps_ns) / min(steps_ns)
    return (
        f"A step of a fixed loop took {min(steps_ns):.0f} to {max(steps_ns):.0f} ns on this machine (x {spread:.1f})."
    )


def summary(table: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the medians for a JSON file."""
    return [{name: getattr(line, name) for name in Line.__dataclass_fields__} for line in table]


def _row(line: Line) -> str:
    name = "(bare relay)" if line.broker == CEILING else line.broker
    cpu = f"{line.cpu_us:12.2f}" if line.cpu_us is not None else f"{'-':>12}"
    per_cpu = f"{line.per_cpu_s:12,.0f}" if line.per_cpu_s is not None else f"{'-':>12}"
    rss = f"{line.peak_rss_bytes / 1e6:8.0f} MB" if line.peak_rss_bytes is not None else f"{'-':>11}"
    return f"  {name:12}{line.rate:12,.0f}{cpu}{per_cpu}{rss}{line.disk_bytes / 1e6:8.0f} MB{line.runs:6}"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
