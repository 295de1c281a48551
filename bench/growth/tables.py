"""What a run of the growth bench says in tables: cost over size, how flat, and who waits how long beside whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.growth.curve import FLAT, growth, medians, worst

LIGHT_P99_MS = 20.0  # the goal beside one publisher at full speed
SHARE_LEAST = 0.8  # of what the others have: less is no share


def summary(content: Mapping[str, Any]) -> str:
    """Return everything in lines for a terminal."""
    lines: list[str] = []
    for curve in content["curves"]:
        costs, ratios = medians(curve["cells"], "cpu_us"), growth(curve["cells"])
        lines.append(f"\n{curve['panel']}: {curve['title']}")
        lines += [f"  {size:>10,}  {cost:8.2f} CPU-us  x {ratios.get(size, 1.0):.2f}" for size, cost in costs.items()]
        lines.append(f"  {verdict(curve)}")
    fairness = content["fairness"]
    for row in fairness["light"] if fairness else ():
        shares = [f"{part} {row[name]:.2f}" for name, part in _SHARES.items() if name in row]
        lines.append(
            f"light client beside {row['title']}: p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms"
            f"{'; least share of ' + ', of '.join(shares) if shares else ''}"
        )
    if fairness and fairness["silent"]:
        silent = fairness["silent"]
        lines.append(
            f"beside two consumers that read nothing: {silent['rate_ratio']:.2f} of the rate, "
            f"{silent['cost_ratio']:.2f} of the cost per message"
        )
    return "\n".join(lines + [f"failed: {text}" for text in content["failures"]])


_SHARES = {"confirmed_least_share": "published", "delivered_least_share": "delivered"}


def verdict(curve: Mapping[str, Any]) -> str:
    """Return whether a curve is flat, and where it is worst if it is not."""
    size, ratio = worst(curve["cells"])
    if ratio <= FLAT:
        return f"flat within {max(0.0, ratio - 1):.0%}"
    return f"{ratio:.1f} times at {size:,}"


def cost_table(curves: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown: a curve in each row, its costs by size, and the verdict."""
    lines = ["| | CPU-µs per message at | |", "|---|---|---|"]
    for curve in curves:
        at = ", ".join(f"{size:,}: {cost:.2f}" for size, cost in medians(curve["cells"], "cpu_us").items())
        lines.append(f"| {curve['panel']}: {curve['title']} | {at} | {verdict(curve)} |")
    return "\n".join(lines)


def light_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown: how long a light client's message takes, and the least share that one had."""
    lines = ["| beside | p50 | p99 | the others' messages/s | least share of one |", "|---|---|---|---|---|"]
    for row in rows:
        rate = f"{row['confirmed_per_s']:,.0f}" if "confirmed_per_s" in row else ""
        shares = [f"{part} {row[name]:.2f}" for name, part in _SHARES.items() if name in row]
        lines.append(
            f"| {row['title']} | {row['p50_ms']:.2f} ms | {row['p99_ms']:.2f} ms | {rate} | {', '.join(shares)} |"
        )
    return "\n".join(lines)
