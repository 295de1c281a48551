"""Lists all scenarios, in the order of measurement."""

from __future__ import annotations

from collections.abc import Sequence

from bench.columns import kind
from bench.scenario import Scenario
from bench.scenarios.backlog import Backlog
from bench.scenarios.confirm import LoneConfirm
from bench.scenarios.connections import Connections
from bench.scenarios.fanout import Fanout
from bench.scenarios.flow import Flow
from bench.scenarios.full_speed import FullSpeed
from bench.scenarios.latency import Latency
from bench.scenarios.lone import KINDS, LoneCall
from bench.scenarios.pingpong import Pingpong
from bench.scenarios.routing import Bindings, Routing, Topology
from bench.scenarios.tls import OverTls

SIZES = (16, 1024)
LARGE_SIZES = (204_800, 1 << 20, 16 << 20)
"""Bodies that take several frames."""


def rows(only: Sequence[str], *, quick: bool = False) -> tuple[Scenario, ...]:
    """Return new scenarios whose name or group is in `only`; a quick run has one number of bindings."""
    few, many = Topology(0), Topology(1)
    if quick:
        many = few
    made: tuple[Scenario, ...] = (
        *(Flow(f"S1-{size}", size, persistent=False, confirms=False, acks=False) for size in SIZES),
        *(Flow(f"S2-{size}", size, persistent=False, confirms=True, acks=True) for size in SIZES),
        *(Flow(f"S3-{size}", size, persistent=True, confirms=True, acks=True) for size in SIZES),
        *(Fanout(f"S4-{size}", size) for size in SIZES),
        *(Latency(f"S6-{size}", size) for size in SIZES),
        Pingpong(),
        LoneConfirm(),
        *(LoneCall(one) for one in KINDS),
        *(OverTls("S2", size) for size in SIZES),
        OverTls("S9", SIZES[0]),
        *(_large(f"S2-{size}", size, persistent=False) for size in LARGE_SIZES),
        _large("S3-204800", LARGE_SIZES[0], persistent=True),
        *(FullSpeed(one, size) for one in ("S1", "S2", "S4") for size in SIZES),
        Routing("S5-10k", few),
        Bindings(many),
        Routing("S5-100k", many),
        Connections(),
        Backlog(),  # last: it takes longest, and it restarts the brokers, which a quick run's scenarios share
    )
    left_out = "S5-10k" if quick else ""
    return tuple(one for one in made if {one.name, kind(one.name)} & set(only) and one.name != left_out)


def known_names() -> tuple[str, ...]:
    """Return the groups, then the names, by which scenarios are selected."""
    return tuple(dict.fromkeys((*GROUPS, *(one.name for one in rows(GROUPS)))))


def _large(name: str, body_bytes: int, *, persistent: bool) -> Flow:
    """Return a row with brokers of its own: memory that another row left free would hide what this one takes."""
    return Flow(name, body_bytes, persistent, confirms=True, acks=True, stage=name, rounds=_FEW_ROUNDS)


def titles(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Return the title of each scenario, in the order of the report."""
    return {one.name: one.title for one in sorted(scenarios, key=lambda one: GROUPS.index(kind(one.name)))}


def for_all(scenario: Scenario) -> bool:
    """Return whether a scenario runs against every broker; the others leave out SlotMQ interpreted."""
    return scenario.rounds > _FEW_ROUNDS or scenario.name in ("S7", "bindings")


_FEW_ROUNDS = 2
GROUPS = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "bindings", "lone", "tls", "large", "full")
"""The kinds of scenarios, in the order of the report."""
