"""The texts of the growth bench: cost over size, flatness, and the light client's latency beside each pressure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.growth.curve import FLAT, growth, medians, worst

SHARE_LEAST = 0.8  # relative to the average of the others: less is unfair


def summary(content: Mapping[str, Any]) -> str:
    """Return all results as lines for a terminal."""
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
            f"light client beside {row['title']}: p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms, longest "
            f"{row['max_ms']:.2f} ms"
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
    """Return whether a curve is flat, and otherwise its worst size."""
    size, ratio = worst(curve["cells"])
    if ratio <= FLAT:
        return f"flat within {max(0.0, ratio - 1):.0%}"
    return f"{ratio:.1f} times at {size:,}"
