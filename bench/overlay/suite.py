"""The four experiments of the Gryphon paper on an overlay, and the cost of a forwarded message beside S1."""

from __future__ import annotations

from typing import Any, Final

from bench.overlay import cost, crashes, hops, leaves, load, paper
from bench.overlay.load import SCHEMES
from bench.overlay.plan import Plan
from bench.picture import BLUE, GREEN, ORANGE, RED, line, plain
from bench.run import Row, Run
from bench.suites import Suite
from bench.tables import Column, crossed, machine_text, rows_table, table
from broker.figures.numerals import share_text

_COLOURS: Final = dict(zip(SCHEMES, (BLUE, ORANGE), strict=True))
_MIDDLE: Final = {"ib1": BLUE, "ib2": ORANGE, "ib3": GREEN}
_LATENCIES: Final = {
    "delivery_ms": ("delivery", GREEN),
    "local_ms": ("start under a cover", BLUE),
    "global_ms": ("start without", RED),
}
_CPU_TOP: Final = 3.0  # times the median: a start takes a whole core for a moment


_ONE: Final = "{:.1f}".format
_TWO: Final = "{:.2f}".format
_COST: Final = (
    Column("", "form", str),
    Column("bytes", "size", "{:,}".format),
    Column("S1, CPU-µs", "s1_us", _TWO),
    Column("middle broker", "middle_us", _TWO),
    Column("times S1", "times", _ONE),
    Column("publishing leaf", "publishing_us", _ONE),
    Column("subscribing leaf", "subscribing_us", _ONE),
    Column("messages/s", "per_s"),
)
_LOAD: Final = (
    Column("publishers", "publishers", "{:,}".format),
    Column("scheme", "scheme", str),
    Column("published/s", "published_per_s"),
    Column("delivered/s", "delivered_per_s"),
    Column("CPU of pb1 to pb4, mean", lambda row: share_text(row["pb_cpu"]) + ", saturated" * bool(row["saturated"])),
    Column("CPU of sb", "sb_cpu", share_text),
)
_HOPS: Final = (
    Column("hops", "hops", str),
    Column("delivery", "delivery_ms", _TWO),
    Column("delivery, p99", "delivery_p99_ms", _ONE),
    Column("start under a cover", "local_ms", _ONE),
    Column("start without", "global_ms", _ONE),
    Column("difference", lambda row: _ONE(row["global_ms"] - row["local_ms"])),
    Column("the paper's", lambda row: _theirs(row["hops"])),
)


def _theirs(count: int) -> str:
    at = paper.HOPS.index(count) if count in paper.HOPS else None
    return "-" if at is None else ", ".join(f"{values[at]:g}" for values in paper.HOPS_MS.values())


def _shares(row: Row) -> str:
    return ", ".join(f"{broker} {share_text(row[broker])}" for broker in ("pb", "ib", "sb"))


def _failure(run: Run) -> str:
    cells = [
        (
            phase["phase"],
            f"{phase['at_s']:.0f} s",
            f"{phase['first']:,.0f}/s",
            f"{phase['fourth']:,.0f}/s",
            *(share_text(phase[broker]) for broker in _MIDDLE),
        )
        for row in run.rows("failure")
        for phase in paper.phases_of(row)
    ]
    return table(("from", "at", "first group", "fourth group", *_MIDDLE), cells)


def _machine(run: Run) -> str:
    failed = f" Not measured: {'; '.join(run.failures)}." if run.failures else ""
    return machine_text(run.facts) + failed


def _draw(figure: Any, run: Run) -> bool:
    """Draw the experiments; stars and dotted lines are the paper's figures."""
    (loads, latencies), (shares, rates), (cpu, unused) = figure.subplots(3, 2)
    unused.set_axis_off()
    for scheme, colour in _COLOURS.items():
        rows = run.rows("load", scheme=scheme)
        line(loads, rows, "publishers", "pb_cpu", times=100, color=colour, label=f"pb (mean), {scheme}")
        style: dict[str, Any] = {"color": colour, "linestyle": "--", "marker": "s"}
        line(loads, rows, "publishers", "sb_cpu", times=100, label=f"sb, {scheme}", **style)
        at, part = paper.LOAD_PB_CPU[scheme]
        loads.plot([0, at], [0, part * 100], "*:", markersize=9, color=colour, label=f"paper: pb, {scheme}")
        for broker, mark in (("pb", "o-"), ("ib", "^:"), ("sb", "s--")):
            style = {"marker": mark[0], "linestyle": mark[1:], "color": colour, "label": f"{broker}, {scheme}"}
            line(shares, run.rows("leaves", scheme=scheme), "leaves", broker, times=100, **style)
    for name, (title, colour) in _LATENCIES.items():
        line(latencies, run.rows("hops"), "hops", name, color=colour, label=title)
        latencies.plot(paper.HOPS, paper.HOPS_MS[name], "*:", markersize=9, color=colour, label=f"paper: {title}")
    for row in run.rows("failure"):
        for (group, values), colour in zip(row["rates"].items(), (BLUE, RED), strict=True):
            rates.plot(range(len(values)), values, color=colour, label=f"{group} group")
        for broker, values in row["cpu"].items():
            cpu.plot(
                [at + 0.5 for at in range(len(values))], [100 * v for v in values], color=_MIDDLE[broker], label=broker
            )
        ordinary = sorted(value for values in row["cpu"].values() for value in values)
        cpu.set_ylim(0, max(1.0, _CPU_TOP * 100 * ordinary[len(ordinary) // 2]))
        for axes in (rates, cpu):
            for at_s, _ in row["events"]:
                axes.axvline(at_s, color="#999999", linewidth=0.6, linestyle=":")
    plain(loads, "load, 2,000 subscriptions", "publishers, 2 messages/s each", "CPU, % of a core", legend=True)
    plain(latencies, "latency over hops, medians", "hops", "ms", legend=True)
    plain(shares, "leaves whose subscriptions change", "leaves", "CPU, % of a core", legend=True)
    plain(rates, "ib1, ib2 killed; a new group; ib1, ib2 back", "s", "messages/s", legend=True)
    plain(cpu, "CPU of the brokers in the middle (a start exceeds the picture)", "s", "CPU, % of a core", legend=True)
    for axes in (loads, latencies, shares, rates):
        axes.set_ylim(0)
    return bool(run.rows())


SUITE: Final = Suite(
    name="overlay",
    about=__doc__,
    parts={
        "cost": cost.measure,
        "load": load.measure,
        "hops": hops.measure,
        "failure": crashes.measure,
        "leaves": leaves.measure,
    },
    plan=Plan(),
    limit_s=660.0,
    tables={
        "cost": rows_table(["cost"], _COST),
        "load": rows_table(["load"], _LOAD),
        "hops": rows_table(["hops"], _HOPS),
        "leaves": lambda run: crossed(run.rows("leaves"), [Column("leaves", "leaves", str)], "scheme", _shares),
        "failure": _failure,
        "verdicts": paper.verdicts,
        "machine": _machine,
    },
    printed=("cost", "load", "hops", "leaves", "failure", "verdicts"),
    mark="bench-overlay",
    pictures={"overlay-figures": ((11, 11), _draw)},
)
