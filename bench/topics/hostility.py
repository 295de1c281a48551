"""Measures the cost of hostile sets of patterns in the engines that a broker may be configured to use."""

from __future__ import annotations

from typing import Any

from bench.topics import hostile
from bench.topics.cell import Cell, NoAnswer
from bench.topics.goals import CHOSEN
from bench.topics.stage import Stage


def measure(stage: Stage) -> dict[str, Any]:
    """Return the times of single matches, by family, engine and form."""
    plan = stage.plan
    rows: list[dict[str, Any]] = []
    for name, package in stage.contestants(CHOSEN):
        with Cell(package, plan.memory_bound_bytes) as cell:
            for family in hostile.families(1):
                row: dict[str, Any] = {"family": family, "engine": name, "form": package.form}
                try:
                    row |= cell.ask(
                        "storm",
                        engine=name,
                        family=family,
                        patterns=plan.hostile_patterns,
                        matches=plan.hostile_matches,
                        bound_s=plan.hostile_bound_s,
                    )
                except NoAnswer as reason:
                    row["left_out"] = str(reason)
                    stage.tell(f"hostile: {family:12} {name:12} {package.form:12} left out: {reason}")
                    rows.append(row)
                    break
                rows.append(row)
                stage.tell(
                    f"hostile: {family:12} {name:12} {package.form:12} median {row['median_us']:8.0f} us,"
                    f" p99 {row['p99_us']:8.0f}, worst {row['worst_us']:8.0f}, visited {row['visited_most']:,}"
                )
    return {"patterns": plan.hostile_patterns, "key_words": 64, "rows": rows}
