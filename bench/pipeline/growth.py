"""Measures archive and route from 10^5 to 10^8 messages: neither time per message nor memory may grow.

Above `growth_step` the slots are written, archived into one lake and removed in steps, as after a cursor has passed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from bench.pipeline.contest import Lap, Work, lap
from bench.pipeline.routing import route, topology
from bench.pipeline.stage import Stage


def measure(stage: Stage) -> dict[str, Any]:
    """Return time, CPU time and memory by size; sizes that exceeded the time limit are named."""
    sizes, left_out = [], []
    stage.show.begin("growth", len(stage.plan.growth))
    _size(stage, stage.plan.growth[0])  # compiles the JVM's code
    for rows in stage.plan.growth:
        if stage.late():
            left_out.append(rows)
            continue
        found = _size(stage, rows)
        sizes.append(found)
        stage.show.step(f"growth: {rows:,}")
        stage.show.tell(
            f"growth   {rows:12,} messages: archive {found['archive_s'] / rows * 1e6:6.2f} s and"
            f" {found['archive_cpu_s'] / rows * 1e6:6.2f} CPU-s per million, route"
            f" {found['route_cpu_s'] / rows * 1e6:6.2f} CPU-s, {found['peak_bytes'] / 1e6:6,.0f} MB"
        )
    return {"sizes": sizes, "left_out": left_out, "patterns": stage.plan.patterns}


def _size(stage: Stage, rows: int) -> dict[str, Any]:
    name = f"growth-{rows}"
    store = stage.new_store(name)
    lake = stage.folder / name / "lake"
    laps = []
    try:
        for begin in range(0, rows, stage.plan.growth_step):
            step = min(stage.plan.growth_step, rows - begin)
            store.add(step)
            laps.append(lap(_archive(stage, store.path, lake, step), stage.folder / "laps" / name))
            store.remove_all()
        bindings = topology(stage.plan.patterns)
        routed = lap(lambda _folder: _routed(stage, lake, bindings, rows), stage.folder / "laps" / name)
    finally:
        store.close()
        shutil.rmtree(stage.folder / name, ignore_errors=True)
    return _figures(rows, laps, routed)


def _archive(stage: Stage, data: Path, lake: Path, rows: int) -> Work:
    return lambda _folder: stage.archive(data, lake, rows)


def _routed(stage: Stage, lake: Path, bindings: Any, rows: int) -> int:
    route(stage, lake, bindings, rows)
    return rows


def _figures(rows: int, laps: list[Lap], routed: Lap) -> dict[str, Any]:
    return {
        "rows": rows,
        "steps": len(laps),
        "archive_s": sum(one.wall_s for one in laps),
        "archive_cpu_s": sum(one.cpu_s for one in laps),
        "archive_cpu_s_first": laps[0].cpu_s,
        "archive_cpu_s_last": laps[-1].cpu_s,
        "route_s": routed.wall_s,
        "route_cpu_s": routed.cpu_s,
        "peak_bytes": max(one.peak_bytes for one in (*laps, routed)),
    }
