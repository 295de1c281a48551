"""The tables of a run: cost beside RabbitMQ and a bare relay, floors and goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.messages.rows import kind, measure_of
from bench.run import Row, Run
from bench.tables import Column, Goal, formatter_of, goals_table, known, machine_text, table
from broker.figures.numerals import number_text

FLOORS = {
    **dict.fromkeys(("S1-16", "S2-16", "S3-16", "S4-16"), 15.0),
    **dict.fromkeys(("S1-1024", "S2-1024", "S3-1024", "S4-1024", "S5-10k", "S5-100k"), 10.0),
}
"""The minimum ratio to RabbitMQ's messages per broker CPU-second."""
NUMBERED = ("S5-100k", "S7", "S8", "bindings")
"""Scenarios whose figures depend on the numbers of a run: a quick run does not judge them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The goal of one figure of one scenario. Units: those of the figure's name."""

    scenario: str
    figure: str
    wanted: float


_LATENCY_US = 50_000.0  # p99 from sent until delivered, beside a publisher at full speed
_NAGLE_US = 2_000.0

GOALS = (
    Wanted("S1-16", "cpu_us", 1.51),
    Wanted("S1-1024", "cpu_us", 3.5),
    Wanted("S2-16", "cpu_us", 3.0),
    Wanted("S2-1024", "cpu_us", 5.9),
    Wanted("S3-16", "cpu_us", 1.8),
    Wanted("S3-1024", "cpu_us", 3.5),
    Wanted("S4-16", "cpu_us", 0.6),
    Wanted("S4-1024", "cpu_us", 1.2),
    Wanted("S1-16-full", "cpu_us", 1.51),
    Wanted("S1-1024-full", "cpu_us", 3.5),
    Wanted("S4-16-full", "cpu_us", 0.6),
    Wanted("S4-1024-full", "cpu_us", 1.2),
    *(Wanted(f"{kind}-{size}-full", "p99_us", _LATENCY_US) for kind in ("S1", "S2", "S4") for size in (16, 1024)),
    Wanted("S2-204800", "cpu_us", 120.0),
    *(Wanted(f"S2-{size}", "held_times", 2.0) for size in (204_800, 1 << 20, 16 << 20)),
    Wanted("S5-10k", "cpu_us", 3.0),
    Wanted("S5-100k", "cpu_us", 5.0),
    Wanted("S6-16", "cpu_us", 70.0),
    Wanted("S6-16", "relay_times", 1.3),
    Wanted("S7", "cpu_us", 2.5),
    Wanted("S7", "rss_growth_bytes", 60e6),
    Wanted("S7", "drain_per_s", 500e3),
    Wanted("S7", "restart_s", 0.5),
    Wanted("S8", "open_cpu_ms", 0.3),
    Wanted("S8", "each_bytes", 5500.0),
    Wanted("S9", "cpu_us", 12.0),
    Wanted("S10", "beyond_us", 100.0),
    Wanted("lone-nagle-connect", "p50_us", _NAGLE_US),
    Wanted("lone-nagle-get", "p50_us", _NAGLE_US),
    Wanted("bindings", "declare_s", 2.0),
    Wanted("bindings", "each_bytes", 500.0),
)


COMPILED, INTERPRETED, PEER = "SlotMQ", "SlotMQ interpreted", "RabbitMQ"
CEILING = "relay"
"""The bare relay: no broker in its place costs less."""

_OTHER: Final = ("S6", "S7", "S8", "S10", "bindings")
"""Kinds of scenarios with a table for each scenario; the other special kinds have one table each."""


def brokers(run: Run) -> list[str]:
    """Return the measured brokers: SlotMQ compiled, interpreted, RabbitMQ, others."""
    names = dict.fromkeys(str(row["broker"]) for row in run.rows())
    known_ones = [name for name in (COMPILED, INTERPRETED, PEER) if name in names]
    return known_ones + [name for name in names if name not in (*known_ones, CEILING)]


def ours(run: Run) -> str:
    """Return the judged broker: SlotMQ as a wheel ships it, else interpreted, else any measured broker."""
    names = [name for name in brokers(run) if name != PEER]
    return names[0] if names else COMPILED


def times_of_peer(run: Run, broker: str, scenario: str) -> float | None:
    """Return the ratio of RabbitMQ's figure to a broker's, None if either is unknown."""
    own, peer = (run.row(scenario, broker=name)[measure_of(scenario)] for name in (broker, PEER))
    return peer / own if own and peer else None


def is_usual(scenario: str) -> bool:
    """Return whether a scenario has no figures but CPU time per message and messages per second."""
    return kind(scenario) not in COLUMNS


def verdicts(run: Run) -> list[tuple[Wanted, float]]:
    """Return every goal that has a figure of the judged broker, with the figure."""
    found = [(goal, run.row(goal.scenario, broker=ours(run))[goal.figure]) for goal in GOALS]
    excluded = NUMBERED if run.facts["quick"] else ()
    return [(goal, figure) for goal, figure in found if figure is not None and goal.scenario not in excluded]


def _title(run: Run, scenario: str) -> str:
    return f"{scenario}: {run.facts['titles'][scenario]}"


def _usual(run: Run) -> list[str]:
    return [name for name in run.facts["titles"] if is_usual(name) and "per_s" in run.row(name, broker=ours(run))]


def _calls(row: Row) -> str:
    return number_text(row["reads"] + row["writes"]) if "reads" in row else "-"


def _cost(run: Run) -> str:
    """Return CPU time per message and messages per second, one line for each scenario that has them."""
    names = brokers(run)
    compared = [name for name in names if name != PEER]
    lines = []
    for scenario in _usual(run):
        cells = [known(row, "cpu_us") + " / " + known(row, "per_s") for row in _rows(run, scenario, names)]
        times = [times_of_peer(run, name, scenario) for name in compared]
        lines.append([_title(run, scenario), *cells, *("-" if one is None else f"{one:.1f}" for one in times)])
    return table(["", *(f"{name}, CPU-us / messages/s" for name in names), *(f"{n} : {PEER}" for n in compared)], lines)


def _rows(run: Run, scenario: str, names: list[str]) -> list[Row]:
    return [run.row(scenario, broker=name) for name in names]


def _measured(run: Run, scenario: str) -> list[Row]:
    """Return the rows of all brokers, then that of the relay."""
    return [row for row in _rows(run, scenario, [*brokers(run), CEILING]) if row.runs]


def _name(row: Row) -> str:
    return "(bare relay)" if row["broker"] == CEILING else str(row["broker"])


def _other(run: Run) -> str:
    """Return a table for each scenario with figures of its own."""
    tables = []
    for scenario in run.facts["titles"]:
        rows = _measured(run, scenario) if kind(scenario) in _OTHER else []
        if rows:
            shown = COLUMNS[kind(scenario)]
            lines = [[_name(row), *(column.cell(row) for column in shown)] for row in rows]
            tables.append(f"{_title(run, scenario)}\n\n{table(['', *(one.title for one in shown)], lines)}")
    return "\n\n".join(tables)


def _of_kind(run: Run, wanted: str) -> str:
    """Return one table of all scenarios of a kind, with a line for each broker."""
    lines = []
    for scenario, title in run.facts["titles"].items():
        if kind(scenario) == wanted:
            for rank, row in enumerate(_measured(run, scenario)):
                cells = [column.cell(row) for column in COLUMNS[wanted]]
                lines.append(["" if rank else title, _name(row), *cells])
    return table(["", "", *(column.title for column in COLUMNS[wanted])], lines)


def _floors(run: Run) -> str:
    found = {name: times_of_peer(run, ours(run), name) for name in FLOORS}
    goals = [Goal.at_least(f"{name}, times {PEER}", times, FLOORS[name]) for name, times in found.items()]
    return goals_table(one for each in goals for one in each)


def _goals(run: Run) -> str:
    goals = []
    for goal, found in verdicts(run):
        make = Goal.at_least if goal.figure.endswith("per_s") else Goal.at_most
        goals.append(make(f"{goal.scenario} `{goal.figure}`", found, goal.wanted, formatter_of(goal.figure)))
    return goals_table(one for each in goals for one in each)


def machine(run: Run) -> str:
    """Return a description of the machine and the run."""
    products = ", ".join(sorted(set(run.facts["products"].values())))
    said = f"{machine_text(run.facts)} Measured: {products}; {run.facts['plan']['rounds']} rounds"
    steps = run.facts["steps_ns"]
    return f"{said}. A step of a fixed Python loop took {steps[0]:.0f} to {steps[1]:.0f} ns meanwhile."


def summary(run: Run) -> str:
    """Return the most significant figures in two sentences: ratios to RabbitMQ, and rates."""
    peer, judged = run.facts["products"].get(PEER, PEER), ours(run)
    called = "the compiled broker" if judged == COMPILED else judged
    said, ratios = [], []
    for size, words in ((16, "16-byte messages"), (1024, "messages of 1 KiB")):
        times = [one for number in (1, 2, 3, 4) if (one := times_of_peer(run, judged, f"S{number}-{size}"))]
        if times:
            ratios.append(f"{min(times):.0f} to {max(times):.0f} times as many {words}")
    if ratios:
        said.append(f"Per CPU-second, {called} handles {' and '.join(ratios)} as {peer}.")
    rates = [
        f"{float(f'{per_s:.2g}'):,.0f} {words} (S{number})"
        for number, words in ((1, "transient"), (3, "persistent"))
        if (per_s := run.row(f"S{number}-16", broker=judged)["per_s"])
    ]
    if rates:
        said.append(
            f"One broker uses one core, and on this machine takes {' or '.join(rates)} small messages per second."
        )
    return " ".join(said)


def _milliseconds(value_us: float) -> str:
    return number_text(value_us / 1e3)


_CPU = Column("CPU-us", "cpu_us")
_P50 = Column("p50, us", "p50_us")
_P99 = Column("p99, us", "p99_us")
_RATE = Column("messages/s", "per_s")
_PEAK = Column("peak RSS", "peak_rss_bytes")
_READS_WRITES = Column("reads + writes", _calls)
COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "S6": (_P50, _P99, _CPU, _READS_WRITES),
    "S7": (
        _RATE,
        _CPU,
        _READS_WRITES,
        Column("RSS growth", "rss_growth_bytes"),
        Column("disk", "disk_bytes"),
        Column("restart, s", "restart_s"),
        Column("after kill -9, s", "crash_s"),
        Column("drained/s", "drain_per_s"),
        Column("drain CPU-us", "drain_cpu_us"),
    ),
    "S8": (
        Column("ms to open", "open_ms"),
        Column("CPU-ms", "open_cpu_ms"),
        _READS_WRITES,
        Column("memory each", "each_bytes"),
        _PEAK,
    ),
    "S10": (
        _P50,
        _P99,
        Column("one fdatasync, us", "fdatasync_us"),
        Column("beyond it, us", "beyond_us"),
        _RATE,
        _CPU,
        _READS_WRITES,
    ),
    "full": (
        _RATE,
        Column("published/s, times queues", "published_per_s"),
        _CPU,
        Column("p50, ms", "p50_us", _milliseconds),
        Column("p99, ms", "p99_us", _milliseconds),
        Column("left in queues", "queued", "{:,.0f}".format),
        _PEAK,
    ),
    "tls": (
        Column("plain: messages/s", "plain_per_s"),
        Column("plain: CPU-us", "plain_cpu_us"),
        Column("TLS: messages/s", "per_s"),
        Column("TLS: CPU-us", "cpu_us"),
    ),
    "large": (
        _RATE,
        _CPU,
        _READS_WRITES,
        Column("on its way", "flight_bytes"),
        Column("memory for it", "held_bytes"),
        Column("times", "held_times"),
    ),
    "lone": (_P50, _P99, _CPU),
    "bindings": (
        Column("s to declare", "declare_s"),
        Column("memory each", "each_bytes"),
    ),
}
"""The columns of the kinds of scenarios that have figures of their own."""

TABLES: Final[dict[str, Callable[[Run], str]]] = {
    "summary": summary,
    "machine": machine,
    "cost": _cost,
    "full": partial(_of_kind, wanted="full"),
    "large": partial(_of_kind, wanted="large"),
    "lone": partial(_of_kind, wanted="lone"),
    "tls": partial(_of_kind, wanted="tls"),
    "other": _other,
    "floors": _floors,
    "goals": _goals,
}
"""The tables by the names of their places on the pages."""
