"""Lists all scenarios, in the order of measurement, and how each is judged; measures the backlog."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.brokers import Broker
from bench.messages.limits import Limits
from bench.messages.lone import KINDS, LoneCall
from bench.messages.perf_load import (
    CONNECTIONS,
    LONE_CONFIRM,
    PINGPONG,
    PerfLoad,
    declared,
    fanout,
    flow,
    full_speed,
    latency,
    mqtt,
    over_tls,
    routing,
)
from bench.meter import Meter
from bench.perf_run import perf
from bench.run import Figures
from broker.perf.faults import RunFailed

SIZES: Final = (16, 1024)
LARGE_SIZES: Final = (204_800, 1 << 20, 16 << 20)
"""Bodies that take several frames."""
GROUPS: Final = (
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "M1", "M3", "M4", "M5", "M6", "bindings", "lone",
    "tls", "large", "full",
)  # fmt: skip
"""The kinds of scenarios, in the order of the report."""
_FEW_ROUNDS: Final = 2
_QUEUE = "bench-backlog"
_BODY_BYTES = 100
_SETTLE_S = 2.0
_DRAIN_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queue up messages, then measure the broker's memory, restarts and drain."""

    name: str = "S7"
    title: str = "persistent, durable, 100 B, no consumer: publish, memory, restart, drain"
    stage: str = "backlog"
    rounds: int = 1
    relayed: bool = False

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError, BrokerFailed."""
        broker.delete(_QUEUE)
        figures = _publish(broker, limits)
        stock = int(figures["messages"])
        if broker.started:
            figures["restart_s"] = _restart(broker, stock, killed=False)
            figures["crash_s"] = _restart(broker, stock, killed=True)
        drained, used = perf(
            broker, "throughput", "-x", "0", "-u", _QUEUE, "-p", "-a", "-D", str(stock), "-s", str(_BODY_BYTES),
            "-z", "0", limit_s=_DRAIN_LIMIT_S,
        )  # fmt: skip
        figures["drain_per_s"] = drained.totals.deliver_per_s
        if "cpu_us" in used:
            figures["drain_cpu_us"] = used["cpu_us"]
        broker.delete(_QUEUE)
        return figures


def _publish(broker: Broker, limits: Limits) -> Figures:
    """Publish the stock, or as much of it as the time limit allows."""
    memory = Meter(broker)
    broker.count(_QUEUE)
    memory.start()
    words = ("-y", "0", "-u", _QUEUE, "-p", "--persistent", "-c", str(limits.window), "-C", str(limits.stock))
    result, used = perf(
        broker, "throughput", *words, "-s", str(_BODY_BYTES), "-z", f"{limits.stock_seconds}s",
        limit_s=limits.stock_seconds + limits.stall_s,
    )  # fmt: skip
    time.sleep(_SETTLE_S)
    used |= {name: size for name, size in memory.stop(1).items() if name.endswith("_bytes")}
    totals = result.totals
    return used | {"messages": totals.confirmed, "seconds": result.seconds, "per_s": totals.confirm_per_s}


def _restart(broker: Broker, stock: int, *, killed: bool) -> float:
    """Restart the broker, and return the seconds until it accepts a client and reports all messages.

    Raises: RunFailed when messages are missing; BrokerFailed.
    """
    seconds = broker.restart(killed=killed)
    begun = time.monotonic()
    ready = broker.count(_QUEUE)
    if ready != stock:
        raise RunFailed(f"{ready} of {stock} messages after a {'crash' if killed else 'restart'}")
    return seconds + time.monotonic() - begun


Scenario = PerfLoad | LoneCall | Backlog
"""A row of the report: its name and title, the brokers that it shares, its rounds, and `measure`."""


def kind(scenario: str) -> str:
    """Return the kind of a scenario, which selects its table: full or tls (its last word), large, or its first word."""
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
        PINGPONG,
        LONE_CONFIRM,
        *map(LoneCall, KINDS),
        *(over_tls("S2", size) for size in SIZES),
        over_tls("S9", SIZES[0]),
        *(flow("S2", size) for size in LARGE_SIZES),
        flow("S3", LARGE_SIZES[0]),
        *(full_speed(kind, size) for kind in ("S1", "S2", "S4") for size in SIZES),
        *(routing(name, count) for name, count in zip(("S5-10k", "S5-100k"), bindings, strict=False)),
        declared(bindings[-1]),
        CONNECTIONS,
        mqtt("M1", "one publisher, one subscriber, QoS 0", "-Q", "0"),
        mqtt("M3", "one publisher, one subscriber, QoS 1", "-Q", "1", "-c", "{window}"),
        mqtt("M4", "fan-out to 1,000 subscribers, QoS 0", "-Q", "0", "-c", "100", subscribers=1000),
        mqtt("M5", "one publisher, one subscriber, QoS 2", "-Q", "2", "-c", "{window}"),
        mqtt("M6", "100 messages/s to 1,000 subscribers, QoS 0", "-Q", "0", "-r", "100", subscribers=1000, paced=True),
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
    """Return whether a scenario runs against every broker, including SlotMQ interpreted."""
    return scenario.rounds > _FEW_ROUNDS or scenario.name in ("S5-10k", "S5-100k", "S7", "S8", "bindings")
