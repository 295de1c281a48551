"""Medians of a kept run, and the tables that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.cluster.cases import LARGE, SMALL

Row = dict[str, Any]

TITLES = {
    "paths": "Throughput, and CPU time per message",
    "nodes": "All nodes publish and consume, a queue each",
    "queues": "From A to B over many queues, 100 B",
    "latency": "Latency at 500 messages per second",
    "peers": "Job queues on the same PostgreSQL",
}
HEAD = {
    "latency": ("", "bytes", "p50", "p99", "confirm p50", "confirm p99"),
    "failover": ("", "first delivery", "all 100 messages"),
}
COSTS = ("", "bytes", "messages/s", "brokers, CPU-µs", "PostgreSQL, CPU-µs", "p50", "p99")


def medians(content: Mapping[str, Any]) -> list[Row]:
    """Return a row for each case: its facts, and the median of each figure over the rounds."""
    rows = []
    for case in content["cases"]:
        rounds = case["rounds"]
        names = {name for found in rounds for name, value in found.items() if isinstance(value, (int, float))}
        figures = {name: median(found[name] for found in rounds if found.get(name) is not None) for name in names}
        rows.append({**case, **figures})
    return rows


def tables(content: Mapping[str, Any]) -> dict[str, str]:
    """Return a Markdown table for each part."""
    rows = medians(content)
    made = {}
    for part in dict.fromkeys(row["part"] for row in rows):
        cells = [_cells(row) for row in rows if row["part"] == part]
        made[part] = _markdown(HEAD.get(part, COSTS), cells)
    return made


def machine(content: Mapping[str, Any]) -> str:
    """Return a sentence about the machine and the run."""
    found = content["machine"]
    rounds = max((len(case["rounds"]) for case in content["cases"]), default=0)
    busy = "; others used the machine meanwhile, so times are too high for everybody" if found["load"] > 1 else ""
    return (
        f"{found['cores']} cores of {found['cpu']}, Python {found['python']}, PostgreSQL {content['postgresql']}, "
        f"brokers {'compiled' if content['compiled'] else 'interpreted'}, {rounds} round{'s' if rounds != 1 else ''}, "
        f"load {found['load']} at the start{busy}."
    )


def verdicts(content: Mapping[str, Any]) -> list[str]:
    """Return one line for each goal."""
    rows = {(row["part"], row["name"], row["size"]): row for row in medians(content) if row.get("per_s")}
    lines = []
    for size, goal in ((SMALL, 60_000), (LARGE, 20_000)):
        row = rows.get(("paths", "cluster, from A to B", size))
        if row is None or "per_s" not in row:
            continue
        lines.append(f"A to B, {size} B: {row['per_s']:,.0f} messages/s, goal {goal:,}: {_met(row['per_s'] >= goal)}")
        best = max((other["per_s"] for key, other in rows.items() if key[0] == "peers" and key[2] == size), default=0)
        if best:
            ratio = row["per_s"] / best
            lines.append(f"A to B, {size} B: {ratio:.1f} times the best job queue, goal 20: {_met(ratio >= 20)}")
        alone = rows.get(("paths", "one broker, its own log", size))
        same = rows.get(("paths", "cluster, same node", size))
        for name, one in (("same node", same), ("A to B", row)):
            if alone and one:
                ratio = one["broker_us"] / alone["broker_us"]
                lines.append(f"{name}, {size} B: {ratio:.1f} times one broker's CPU, goal 2: {_met(ratio <= 2)}")
    for row in medians(content):
        if row["part"] == "failover" and "first_s" in row:
            limit_s = content["lease_ms"] / 1000 + 2
            met = _met(row["first_s"] < limit_s)
            lines.append(f"fail-over: {row['first_s']:.2f} s, goal {limit_s:g} s: {met}")
    return lines


def _met(met: bool) -> str:
    return "met" if met else "MISSED"


def _cells(row: Row) -> Sequence[str]:
    if "failure" in row:
        return (row["name"], f"{row['size']:,}", row["failure"])
    if row["part"] == "failover":
        return (row["name"], f"{row['first_s']:.2f} s", f"{row['all_s']:.2f} s")
    if row["part"] == "latency":
        figures = ("p50_us", "p99_us", "confirm_p50_us", "confirm_p99_us")
        return (row["name"], f"{row['size']:,}", *(_time(row.get(name)) for name in figures))
    return (
        row["name"],
        f"{row['size']:,}",
        f"{row['per_s']:,.0f}",
        f"{row['broker_us']:.1f}",
        f"{row['database_us']:.1f}" if "database_us" in row else "-",
        _time(row.get("p50_us")),
        _time(row.get("p99_us")),
    )


def _time(value_us: float | None) -> str:
    if value_us is None:
        return "-"
    if value_us < 1000:
        return f"{value_us:.0f} µs"
    return f"{value_us / 1000:.3g} ms" if value_us < 1e6 else f"{value_us / 1e6:.3g} s"


def _markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---", *("---:" for _ in head[1:])], *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
