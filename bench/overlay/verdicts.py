"""Where the experiments agree with the paper, and where not: the shapes that it describes, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.overlay import paper
from bench.overlay.plan import Row

FLAT = 1.25
_GROWS = 1.5
_LINEAR = 0.25  # of the span: how far the middle may lie from the straight line
_COST_TIMES = 2.0
_DIP_S = 1.0

Parts = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A shape that the paper describes, and what was found."""

    part: str
    shape: str
    found: str
    agrees: bool


def verdicts(parts: Parts) -> list[Verdict]:
    """Return a verdict for each shape that the measured rows can show."""
    makers = {"load": _load, "hops": _hops, "leaves": _leaves, "failure": _failure, "cost": _cost}
    return [one for part, make in makers.items() if parts.get(part) for one in make(parts[part])]


def of_scheme(rows: Sequence[Row], scheme: str) -> list[Row]:
    """Return the rows of one scheme."""
    return [row for row in rows if row["scheme"] == scheme]


def _load(rows: Sequence[Row]) -> Iterator[Verdict]:
    propagated, flooded = (of_scheme(rows, scheme) for scheme in ("propagation", "flooding"))
    if len(propagated) > 1:
        first, last = propagated[0], propagated[-1]
        times = _ratio(last["sb_cpu"], first["sb_cpu"])
        shape = "sb's CPU stays constant with propagation, whatever others publish"
        yield Verdict("load", shape, f"{times:.2f} times at {last['publishers']:,} publishers", times <= FLAT)
    if len(flooded) > 1:
        first, last = flooded[0], flooded[-1]
        times = _ratio(last["sb_cpu"], first["sb_cpu"])
        found = f"{times:.2f} times at {last['publishers']:,} publishers"
        yield Verdict("load", "sb's CPU grows with flooding, although nobody wants more", found, times > FLAT)
    if len(propagated) > 1 and len(flooded) > 1:
        one, other = propagated[0]["sb_cpu"], flooded[0]["sb_cpu"]
        times = max(_ratio(one, other), _ratio(other, one))
        shape = "sb's CPU is the same with both if all messages are wanted"
        yield Verdict("load", shape, f"{one:.1%} and {other:.1%}", times <= FLAT)
        slow, fast = (1_000 * _slope(found, "publishers", "pb_cpu") for found in (propagated, flooded))
        shape = "pb's CPU grows with the publishers, about three times as fast with flooding"
        found = f"by {slow:.2%} and {fast:.2%} of a core for each 1,000 publishers"
        yield Verdict("load", shape, found, fast > 0 and fast >= _GROWS * slow)


def _hops(rows: Sequence[Row]) -> Iterator[Verdict]:
    if len(rows) < 2:
        return
    local = [row["local_ms"] for row in rows]
    flat = max(local) <= FLAT * min(local)
    yield Verdict(
        "hops", "a start under a cover takes the same over any number of hops", _series(rows, "local_ms"), flat
    )
    for name, what in (("delivery_ms", "delivery latency"), ("global_ms", "a start without a cover")):
        straight = _is_linear(rows, name)
        yield Verdict("hops", f"{what} grows linearly with the hops", _series(rows, name), straight)


def _leaves(rows: Sequence[Row]) -> Iterator[Verdict]:
    for scheme in ("propagation", "flooding"):
        found = of_scheme(rows, scheme)
        if len(found) < 2:
            continue
        for broker in ("pb", "sb"):
            shares = [row[broker] for row in found]
            shape = f"{broker}'s CPU does not grow with the leaves, {scheme}"
            series = ", ".join(f"{share:.1%}" for share in shares)
            yield Verdict("leaves", shape, series, _ratio(max(shares), shares[0]) <= FLAT)
    one, other = (of_scheme(rows, scheme) for scheme in ("propagation", "flooding"))
    if one and other:
        more = median(row["pb"] for row in one) - median(row["pb"] for row in other)
        shape = f"propagation takes about {paper.LEAVES_PB_DIFFERENCE:.0%} of a processor more at pb"
        agrees = abs(more) <= 2 * paper.LEAVES_PB_DIFFERENCE
        yield Verdict("leaves", shape, f"{more:+.1%} of a core", agrees)


def _failure(rows: Sequence[Row]) -> Iterator[Verdict]:
    row = rows[-1]
    wrong = row["missing"] + row["double"] + row["disordered"]
    found = (
        f"{row['missing']} missing, {row['double']} double, {row['disordered']} out of order of {row['delivered']:,}"
    )
    yield Verdict("failure", "nothing is lost, doubled or reordered", found, not wrong)
    dip_s = max(row["dip_s"].values())
    shape = f"clients' rates go on (at most {_DIP_S:g} s below half)"
    yield Verdict("failure", shape, f"{dip_s:.1f} s below half of the rate", dip_s <= _DIP_S)
    phases = {phase["phase"]: phase for phase in phases_of(row)}
    alone = phases.get("ib2 killed")
    if alone is not None and (begun := phases.get("begin")) is not None:
        found = f"{begun['ib3']:.1%}, {phases['ib1 killed']['ib3']:.1%}, {alone['ib3']:.1%} of a core"
        takes_over = begun["ib3"] < phases["ib1 killed"]["ib3"] < alone["ib3"]
        yield Verdict("failure", "ib3 takes over from ib1 and then from ib2: 0, 4, 8 %", found, takes_over)
    fourth = phases.get("fourth group")
    if fourth is not None:
        share = fourth["fourth"] / row["due_per_s"]["fourth"]
        shape = "a new group starts with one of three brokers left"
        yield Verdict("failure", shape, f"gets {share:.0%} of its rate", share > 1 / _GROWS)


def _cost(rows: Sequence[Row]) -> Iterator[Verdict]:
    for cell in costs_of(rows):
        shape = f"a forwarded message of {cell['size']:,} B costs a middle broker at most twice S1 ({cell['form']})"
        times = cell["middle_us"] / cell["s1_us"]
        found = f"{cell['middle_us']:.2f} and {cell['s1_us']:.2f} CPU-µs: {times:.1f} times"
        yield Verdict("cost", shape, found, times <= _COST_TIMES)


def costs_of(rows: Sequence[Row]) -> list[Row]:
    """Return the medians of the rounds, a row for each form and size."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["form"], row["size"]), []).append(row)
    names = ("s1_us", "middle_us", "publishing_us", "subscribing_us", "s1_per_s", "per_s")
    return [
        {"form": form, "size": size, **{name: median(row[name] for row in found) for name in names}}
        for (form, size), found in cells.items()
    ]


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
        phase |= {group: median(row["rates"][group][first:last]) for group in ("first", "fourth")}
        phase |= {broker: median(shares[first:last]) for broker, shares in row["cpu"].items()}
        phases.append(phase)
    return phases


def _series(rows: Sequence[Row], name: str) -> str:
    return ", ".join(f"{row[name]:.1f}" for row in rows) + " ms at " + ", ".join(str(row["hops"]) for row in rows)


def _slope(rows: Sequence[Row], across: str, up: str) -> float:
    first, last = rows[0], rows[-1]
    return float((last[up] - first[up]) / ((last[across] - first[across]) or 1))


def _is_linear(rows: Sequence[Row], name: str) -> bool:
    """Return whether a figure rises, and each point lies near the line from the first one to the last one."""
    first, slope = rows[0], _slope(rows, "hops", name)
    span = rows[-1][name] - first[name]
    away = [abs(row[name] - first[name] - slope * (row["hops"] - first["hops"])) for row in rows]
    return bool(span > 0 and max(away) <= _LINEAR * span)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else float("inf")
