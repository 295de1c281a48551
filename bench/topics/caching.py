"""Measures the route cache of a topic exchange: hits, and keys that never recur."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.topics import workload
from bench.topics.cell import Cell
from bench.topics.stage import Stage


def measure(stage: Stage) -> dict[str, Any]:
    """Return the cost of a hit and of a miss with and without the cache, by form."""
    plan = stage.plan
    patterns = stage.write(f"patterns-{plan.cache_patterns}", workload.patterns(plan.cache_patterns))
    keys = stage.write("thrash-keys", workload.keys(plan.thrash_keys, seed=5))
    rows = []
    for package in stage.packages:
        with Cell(package, plan.memory_bound_bytes) as cell:
            row = cell.ask("cache", patterns=patterns, keys=keys, recurring=plan.cache_keys, rounds=plan.rounds)
        for name in ("hit_us", "empty_call_us", "thrash_us", "uncached_us"):
            row[name] = median(row[name])
        rows.append(row)
        stage.tell(
            f"cache: {package.form:12} hit {row['hit_us']:.3f} us (an empty call {row['empty_call_us']:.3f}),"
            f" a key that never returns {row['thrash_us']:.2f} us, without a cache {row['uncached_us']:.2f} us"
        )
    return {"patterns": plan.cache_patterns, "recurring": plan.cache_keys, "rows": rows}
