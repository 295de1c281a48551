"""The shapes of curves that the paper describes, and whether the experiments agree with them.

Source: Zhao, Sturman, Bhola, "Subscription Propagation in Highly-Available Publish/Subscribe Middleware", section 5.2.
Its brokers had six processors of 500 MHz each on a local network, and only identical subscriptions covered each other.
The figures are from its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from bench.overlay.load import SCHEMES
from bench.run import Row, Run
from bench.tables import Goal, goals_table

FLAT: Final = 1.25
LOAD_PB_CPU: Final = {"propagation": (12_000, 0.31), "flooding": (10_000, 0.90)}
"""The publishing brokers' CPU: 31 % at 12,000 publishers with propagation, over 90 % at 10,000 with flooding."""
HOPS: Final = (1, 4, 7)
HOPS_MS: Final = {"delivery_ms": (3.0, 6.0, 9.0), "local_ms": (17.0, 17.0, 17.0), "global_ms": (26.5, 36.0, 45.0)}
LEAVES_PB_DIFFERENCE: Final = 0.03
"""How much more CPU, in shares of a processor, the publishing broker takes with propagation than with flooding."""
IB3_CPU: Final = (0.0, 0.04, 0.08)
"""CPU of ib3 before the crashes, after that of ib1, and after that of ib2."""
_GROWS: Final = 1.5
_LINEAR: Final = 0.25  # of the span: how far the middle may be from the straight line
_COST_TIMES: Final = 2.0
_DIP_S: Final = 1.0

Shape = tuple[str, str, str, bool]
"""The fields of a goal: the part, the shape that the paper describes, the finding, and whether they agree."""


def verdicts(run: Run) -> str:
    """Return a table with a line for each shape that the measured rows can show."""
    return goals_table(Goal(*one) for make in (_load, _hops, _leaves, _failure, _cost) for one in make(run))


def _load(run: Run) -> Iterator[Shape]:
    rows = {scheme: run.rows("load", scheme=scheme) for scheme in SCHEMES}
    for scheme, shape in (
        ("propagation", "sb's CPU stays constant with propagation, whatever others publish"),
        ("flooding", "sb's CPU grows with flooding, although nobody wants more"),
    ):
        if len(rows[scheme]) > 1:
            first, last = rows[scheme][0], rows[scheme][-1]
            times = _ratio(last["sb_cpu"], first["sb_cpu"])
            found = f"{times:.2f} times at {last['publishers']:,} publishers"
            yield "load", shape, found, (times <= FLAT) == (scheme == "propagation")
    if all(len(found) > 1 for found in rows.values()):
        one, other = (rows[scheme][0]["sb_cpu"] for scheme in SCHEMES)
        times = max(_ratio(one, other), _ratio(other, one))
        shape = "sb's CPU is the same with both if all messages are wanted"
        yield "load", shape, f"{one:.1%} and {other:.1%}", times <= FLAT
        slow, fast = (1_000 * _slope(rows[scheme], "publishers", "pb_cpu") for scheme in SCHEMES)
        shape = "pb's CPU grows with the publishers, about three times as fast with flooding"
        text = f"by {slow:.2%} and {fast:.2%} of a core for each 1,000 publishers"
        yield "load", shape, text, fast > 0 and fast >= _GROWS * slow


def _hops(run: Run) -> Iterator[Shape]:
    rows = run.rows("hops")
    if len(rows) < 2:
        return
    for name, shape in (
        ("local_ms", "a start under a cover takes the same over any number of hops"),
        ("delivery_ms", "delivery latency grows linearly with the hops"),
        ("global_ms", "a start without a cover grows linearly with the hops"),
    ):
        values = [row[name] for row in rows]
        series = f"{', '.join(f'{one:.1f}' for one in values)} ms at {', '.join(str(row['hops']) for row in rows)}"
        agrees = max(values) <= FLAT * min(values) if name == "local_ms" else is_linear(rows, name)
        yield "hops", shape, series, agrees


def _leaves(run: Run) -> Iterator[Shape]:
    for scheme in SCHEMES:
        rows = run.rows("leaves", scheme=scheme)
        for broker in ("pb", "sb") if len(rows) > 1 else ():
            shares = [row[broker] for row in rows]
            shape = f"{broker}'s CPU does not grow with the leaves, {scheme}"
            series = ", ".join(f"{one:.1%}" for one in shares)
            yield "leaves", shape, series, _ratio(max(shares), shares[0]) <= FLAT
    one, other = ([row["pb"] for row in run.rows("leaves", scheme=scheme)] for scheme in SCHEMES)
    if one and other:
        more = median(one) - median(other)
        shape = f"propagation takes about {LEAVES_PB_DIFFERENCE:.0%} of a processor more at pb"
        yield "leaves", shape, f"{more:+.1%} of a core", abs(more) <= 2 * LEAVES_PB_DIFFERENCE


def _failure(run: Run) -> Iterator[Shape]:
    for row in run.rows("failure"):
        wrong = {name: int(row[name]) for name in ("missing", "double", "disordered")}
        found = f"{wrong['missing']} missing, {wrong['double']} double, {wrong['disordered']} out of order"
        found = f"{found} of {row['delivered']:,.0f}"
        yield "failure", "nothing is lost, doubled or reordered", found, not any(wrong.values())
        shape = f"clients' rates go on (at most {_DIP_S:g} s below half)"
        yield "failure", shape, f"{row['dip_s']:.1f} s below half of the rate", row["dip_s"] <= _DIP_S
        phases = {phase["phase"]: phase for phase in phases_of(row)}
        if {"begin", "ib1 killed", "ib2 killed"} <= phases.keys():
            shares = [phases[name]["ib3"] for name in ("begin", "ib1 killed", "ib2 killed")]
            paper = ", ".join(f"{one * 100:.0f}" for one in IB3_CPU)
            shape = f"ib3 takes over from ib1 and then from ib2: {paper} %"
            found = f"{', '.join(f'{one:.1%}' for one in shares)} of a core"
            yield "failure", shape, found, shares[0] < shares[1] < shares[2]
        if "fourth group" in phases:
            share = phases["fourth group"]["fourth"] / row["late_due_per_s"]
            shape = "a new group starts with one of three brokers left"
            yield "failure", shape, f"gets {share:.0%} of its rate", share > 1 / _GROWS


def _cost(run: Run) -> Iterator[Shape]:
    for row in run.rows("cost"):
        shape = f"a forwarded message of {row['size']:,} B costs a middle broker at most twice S1 ({row['form']})"
        times = row["middle_us"] / row["s1_us"]
        found = f"{row['middle_us']:.2f} and {row['s1_us']:.2f} CPU-µs: {times:.1f} times"
        yield "cost", shape, found, times <= _COST_TIMES


def phases_of(row: Row) -> list[dict[str, Any]]:
    """Return the medians of each phase of the failure test: rates of two groups, CPU of the brokers in the middle.

    The first second of a phase, in which an event happens, does not count unless there is no other.
    """
    seconds = min(len(found) for found in (*row["rates"].values(), *row["cpu"].values()))
    marks = [(0.0, "begin"), *((at_s, name) for at_s, name in row["events"])]
    phases = []
    for (at_s, name), (until_s, _) in zip(marks, [*marks[1:], (float(seconds), "end")], strict=True):
        last = min(seconds, int(until_s))
        first = min(int(at_s) + 2 if at_s else 1, last - 1)
        if first < 0 or first >= last:
            continue
        phase: dict[str, Any] = {"phase": name, "at_s": at_s}
        phase |= {group: median(rates[first:last]) for group, rates in row["rates"].items()}
        phase |= {broker: median(shares[first:last]) for broker, shares in row["cpu"].items()}
        phases.append(phase)
    return phases


def _slope(rows: Sequence[Row], across: str, up: str) -> float:
    first, last = rows[0], rows[-1]
    return float((last[up] - first[up]) / ((last[across] - first[across]) or 1))


def is_linear(rows: Sequence[Row], name: str) -> bool:
    """Return whether a figure rises, with each point near the line from the first to the last."""
    first, slope = rows[0], _slope(rows, "hops", name)
    span = rows[-1][name] - first[name]
    away = [abs(row[name] - first[name] - slope * (row["hops"] - first["hops"])) for row in rows]
    return bool(span > 0 and max(away) <= _LINEAR * span)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else float("inf")
