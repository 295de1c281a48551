"""Lists all scenarios, in the order of measurement, and how each is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.messages.backlog import Backlog
from bench.messages.limits import Limits
from bench.messages.lone import KINDS, LoneCall
from bench.messages.perf_load import (
    PerfLoad,
    connections,
    declared,
    fanout,
    flow,
    full_speed,
    large,
    latency,
    lone_confirm,
    over_tls,
    pingpong,
    routing,
)

Scenario = PerfLoad | LoneCall | Backlog
"""A row of the report: its name and title, the brokers that it shares, its rounds, and `measure`."""

SIZES: Final = (16, 1024)
LARGE_SIZES: Final = (204_800, 1 << 20, 16 << 20)
"""Bodies that take several frames."""
GROUPS: Final = (
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "bindings", "lone", "tls", "large", "full",
)  # fmt: skip
"""The kinds of scenarios, in the order of the report."""
_FEW_ROUNDS: Final = 2


def kind(scenario: str) -> str:
    """Return what decides how a scenario is shown: its last word if that is full or tls, large, or its number."""
    first, *rest = scenario.split("-")
    if rest and rest[-1] in ("full", "tls"):
        return rest[-1]
    return "large" if rest and rest[0].isdigit() and int(rest[0]) >= LARGE_SIZES[0] else first


def measure_of(scenario: str) -> str:
    """Return the figure by which runs of a scenario are compared; CPU time by default."""
    measures = {"S6": "p50_us", "S8": "open_cpu_ms", "S10": "p50_us", "lone": "p50_us", "bindings": "declare_s"}
    return measures.get(kind(scenario), "cpu_us")


def rows(only: Sequence[str], limits: Limits | None = None) -> tuple[Scenario, ...]:
    """Return the scenarios whose name or group is in `only`; a quick run has one number of bindings."""
    bindings = (limits or Limits()).bindings
    made: tuple[Scenario, ...] = (
        *(flow(kind, size) for kind in ("S1", "S2", "S3") for size in SIZES),
        *map(fanout, SIZES),
        *map(latency, SIZES),
        pingpong(),
        lone_confirm(),
        *map(LoneCall, KINDS),
        *(over_tls("S2", size) for size in SIZES),
        over_tls("S9", SIZES[0]),
        *(large("S2", size) for size in LARGE_SIZES),
        large("S3", LARGE_SIZES[0]),
        *(full_speed(kind, size) for kind in ("S1", "S2", "S4") for size in SIZES),
        *(routing(name, count) for name, count in zip(("S5-10k", "S5-100k"), bindings, strict=False)),
        declared(bindings[-1]),
        connections(),
        Backlog(),  # last: it takes longest, and it restarts the brokers, which a quick run's scenarios share
    )
    return tuple(one for one in made if {one.name, kind(one.name)} & set(only))


def known_names() -> tuple[str, ...]:
    """Return the groups, then the names, by which scenarios are selected."""
    return tuple(dict.fromkeys((*GROUPS, *(one.name for one in rows(GROUPS)))))


def titles(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Return the title of each scenario, in the order of the report."""
    return {one.name: one.title for one in sorted(scenarios, key=lambda one: GROUPS.index(kind(one.name)))}


def for_all(scenario: Scenario) -> bool:
    """Return whether a scenario runs against every broker; the others leave out SlotMQ interpreted."""
    return scenario.rounds > _FEW_ROUNDS or scenario.name in ("S5-10k", "S5-100k", "S7", "S8", "bindings")
