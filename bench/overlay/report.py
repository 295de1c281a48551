"""The tables of a kept run, in Markdown, and the sentence about its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.overlay import paper
from bench.overlay.load import SCHEMES
from bench.overlay.plan import Row
from bench.overlay.verdicts import costs_of, of_scheme, phases_of, verdicts

TITLES = {
    "cost": "What a forwarded message costs each broker, beside S1",
    "load": "Load against flooding",
    "hops": "Latency over hops, in milliseconds",
    "leaves": "CPU against the number of leaves",
    "failure": "The failure test",
    "verdicts": "Beside the paper",
}


def tables(content: Mapping[str, Any]) -> dict[str, str]:
    """Return a table for each part that has rows, and one with the verdicts."""
    makers: dict[str, Callable[[Sequence[Row]], str]] = {
        "cost": _cost,
        "load": _load,
        "hops": _hops,
        "leaves": _leaves,
        "failure": _failure,
    }
    parts = content["parts"]
    made = {part: make(parts[part]) for part, make in makers.items() if parts.get(part)}
    found = verdicts(parts)
    if found:
        cells = [(one.part, one.shape, one.found, "yes" if one.agrees else "**no**") for one in found]
        made["verdicts"] = _markdown(("part", "the paper, or the goal", "here", "agrees"), cells, figures=0)
    return made


def machine(content: Mapping[str, Any]) -> str:
    """Return a sentence about the machine and the run."""
    found = content["machine"]
    busy = "; others used the machine meanwhile" if found["load"] > 1 else ""
    quick = " A quick run: small numbers, so no shape is proven." if content["quick"] else ""
    failed = f" Not measured: {'; '.join(content['failures'])}." if content["failures"] else ""
    return (
        f"{found['cores']} cores of {found['cpu']}, Python {found['python']}, brokers "
        f"{'compiled' if content['compiled'] else 'interpreted'}, load {found['load']} at the start{busy}."
        f"{quick}{failed}"
    )


def _cost(rows: Sequence[Row]) -> str:
    head = ("", "bytes", "S1, CPU-µs", "middle broker", "times S1", "publishing leaf", "subscribing leaf", "messages/s")
    cells = [
        (
            row["form"],
            f"{row['size']:,}",
            f"{row['s1_us']:.2f}",
            f"{row['middle_us']:.2f}",
            f"{row['middle_us'] / row['s1_us']:.1f}",
            f"{row['publishing_us']:.1f}",
            f"{row['subscribing_us']:.1f}",
            f"{row['per_s']:,.0f}",
        )
        for row in costs_of(rows)
    ]
    return _markdown(head, cells)


def _load(rows: Sequence[Row]) -> str:
    head = ("publishers", "scheme", "published/s", "delivered/s", "CPU of pb1 to pb4, mean", "CPU of sb")
    cells = [
        (
            f"{row['publishers']:,}",
            row["scheme"],
            f"{row['published_per_s']:,.0f}",
            f"{row['delivered_per_s']:,.0f}",
            f"{row['pb_cpu']:.1%}" + (", saturated" if row.get("saturated") else ""),
            f"{row['sb_cpu']:.1%}",
        )
        for row in rows
    ]
    return _markdown(head, cells)


def _hops(rows: Sequence[Row]) -> str:
    head = ("hops", "delivery", "delivery, p99", "start under a cover", "start without", "difference", "the paper's")
    theirs = {
        hops: f"{delivery:g}, {local:g}, {far:g}"
        for hops, delivery, local, far in zip(
            paper.HOPS, paper.DELIVERY_MS, paper.LOCAL_MS, paper.GLOBAL_MS, strict=True
        )
    }
    cells = [
        (
            str(row["hops"]),
            f"{row['delivery_ms']:.2f}",
            f"{row['delivery_p99_ms']:.1f}",
            f"{row['local_ms']:.1f}",
            f"{row['global_ms']:.1f}",
            f"{row['global_ms'] - row['local_ms']:.1f}",
            theirs.get(row["hops"], "-"),
        )
        for row in rows
    ]
    return _markdown(head, cells)


def _leaves(rows: Sequence[Row]) -> str:
    head = ["leaves"] + [f"{broker}, {scheme}" for broker in ("pb", "ib", "sb") for scheme in SCHEMES]
    by_count: dict[int, dict[str, Row]] = {}
    for scheme in SCHEMES:
        for row in of_scheme(rows, scheme):
            by_count.setdefault(row["leaves"], {})[scheme] = row
    cells = [
        (
            str(count),
            *(
                f"{found[scheme][broker]:.1%}" if scheme in found else "-"
                for broker in ("pb", "ib", "sb")
                for scheme in SCHEMES
            ),
        )
        for count, found in by_count.items()
    ]
    return _markdown(head, cells)


def _failure(rows: Sequence[Row]) -> str:
    head = ("from", "at", "first group", "fourth group", "ib1", "ib2", "ib3")
    cells = [
        (
            phase["phase"],
            f"{phase['at_s']:.0f} s",
            f"{phase['first']:,.0f}/s",
            f"{phase['fourth']:,.0f}/s",
            *(f"{phase[broker]:.1%}" for broker in ("ib1", "ib2", "ib3")),
        )
        for phase in phases_of(rows[-1])
    ]
    return _markdown(head, cells)


def _markdown(head: Sequence[str], cells: Sequence[Sequence[str]], *, figures: int | None = None) -> str:
    """Return a table whose columns after the first one are figures, unless `figures` says how many are."""
    right = len(head) - 1 if figures is None else figures
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *cells))
