"""Formats the figures of a stored run as tables of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.topics.goals import goals

Parts = dict[str, Any]


def number(value: float | None) -> str:
    """Return a figure in three digits, or a dash for none."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _by_size(parts: Parts, cell: Callable[[Parts], str]) -> str:
    """Return a table with a line for each engine and form, and a column for each size."""
    entries = parts["sizes"]["entries"]
    sizes = sorted({entry["size"] for entry in entries})
    kinds = list(dict.fromkeys((entry["engine"], entry["form"]) for entry in entries))
    found = {(entry["engine"], entry["form"], entry["size"]): entry for entry in entries}
    rows = []
    for engine, form in kinds:
        cells = [found.get((engine, form, size)) for size in sizes]
        rows.append([engine, form, *("-" if one is None or one["left_out"] else cell(one) for one in cells)])
    return table(["engine", "form", *(f"{size:,}" for size in sizes)], rows)


def _match(parts: Parts) -> str:
    lines = _by_size(parts, lambda entry: number(entry["match_us"]))
    steps: dict[int, list[float]] = {}
    for entry in parts["sizes"]["entries"]:
        if not entry["left_out"]:
            steps.setdefault(entry["size"], []).append(entry["figures"]["step_ns"])
    spreads = [f"{min(found):.0f} to {max(found):.0f}" for _, found in sorted(steps.items())]
    return f"{lines}\n| *the machine: a step of a fixed loop, ns* | | {' | '.join(spreads)} |"


def _broker(parts: Parts) -> str:
    rows = parts["broker"]["medians"]
    names = list(dict.fromkeys(row["broker"] for row in rows))
    places = list(dict.fromkeys((row["bindings"], row["keys"]) for row in rows))
    found = {(row["bindings"], row["keys"], row["broker"]): row for row in rows}
    lines = []
    for bindings, keys in places:
        cells = {name: found.get((bindings, keys, name)) for name in names}
        line = [f"{bindings:,}", keys, *(_rate(cell) for cell in cells.values())]
        peer = cells.get("RabbitMQ")
        line += ["-" if not one or not peer else number(one["per_s"] / peer["per_s"]) for one in _ours(cells)]
        lines.append(line)
    ratios = [f"{name} : RabbitMQ" for name in names if name != "RabbitMQ"] if "RabbitMQ" in names else []
    return table(["bindings", "keys", *(f"{name}, messages/s / CPU-us" for name in names), *ratios], lines)


def _rate(cell: Parts | None) -> str:
    return f"{cell['per_s']:,.0f} / {number(cell['cpu_us'])}" if cell else "-"


def _ours(cells: dict[str, Parts | None]) -> list[Parts | None]:
    """Return the cells to compare with the peer's: none if the peer was not measured at all."""
    return [cell for name, cell in cells.items() if name != "RabbitMQ"] if "RabbitMQ" in cells else []


def goals_table(parts: Parts) -> str:
    """Return the goals, each with what was found."""
    return table(
        ["what", "to reach", "by `auto`", "", "the best there is"],
        [[goal.what, goal.wanted, goal.found, goal.verdict, goal.best] for goal in goals(parts)],
    )


TABLES: dict[str, tuple[str, Callable[[Parts], str]]] = {
    "match": ("sizes", _match),
    "broker": ("broker", _broker),
}
"""The tables by name, each with its part of a run."""
