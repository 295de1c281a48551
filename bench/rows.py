"""Lists all scenarios, in the order of measurement."""

from __future__ import annotations

from collections.abc import Sequence

from bench.scenario import Scenario
from bench.scenarios.backlog import Backlog
from bench.scenarios.confirm import LoneConfirm
from bench.scenarios.connections import Connections
from bench.scenarios.fanout import Fanout
from bench.scenarios.flow import Flow
from bench.scenarios.latency import Latency
from bench.scenarios.pingpong import Pingpong
from bench.scenarios.routing import Bindings, Routing, Topology

SIZES = (16, 1024)
LARGE_BYTES = 204_800
"""A body that takes several frames."""


def rows(only: Sequence[str], *, quick: bool = False) -> tuple[Scenario, ...]:
    """Return new scenarios whose name or number is in `only`; a quick run has one number of bindings."""
    few, many = Topology(0), Topology(1)
    if quick:
        many = few
    made: tuple[Scenario, ...] = (
        *(Flow(f"S1-{size}", size, persistent=False, confirms=False, acks=False) for size in SIZES),
        *(Flow(f"S2-{size}", size, persistent=False, confirms=True, acks=True) for size in (*SIZES, LARGE_BYTES)),
        *(Flow(f"S3-{size}", size, persistent=True, confirms=True, acks=True) for size in SIZES),
        *(Fanout(f"S4-{size}", size) for size in SIZES),
        *(Latency(f"S6-{size}", size) for size in SIZES),
        Pingpong(),
        LoneConfirm(),
        Routing("S5-10k", few),
        Bindings(many),
        Routing("S5-100k", many),
        Connections(),
        Backlog(),  # last: it takes longest, and it restarts the brokers, which a quick run's scenarios share
    )
    left_out = "S5-10k" if quick else ""
    return tuple(one for one in made if {one.name, number(one.name)} & set(only) and one.name != left_out)


def known_names() -> tuple[str, ...]:
    """Return the numbers, then the names, by which scenarios are selected."""
    return tuple(dict.fromkeys((*NUMBERS, *(one.name for one in rows(NUMBERS)))))


def titles(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Return the title of each scenario, in the order of the report."""
    return {one.name: one.title for one in sorted(scenarios, key=lambda one: NUMBERS.index(number(one.name)))}


def number(name: str) -> str:
    """Return the number of a scenario's name: the part before its variant."""
    return name.partition("-")[0]


NUMBERS = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "bindings")
