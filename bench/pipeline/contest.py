"""Runs contestants of one task in turn, A B A B, and measures the time and the CPU time of the whole process tree.

The tree is this process, the JVM that it started, and the JVM's Python workers, including ended ones.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from broker.perf.process_tree import ProcessTree

Work = Callable[[Path], int]
"""Performs the task once, with an empty folder of its own, and returns the number of rows."""


@dataclass(frozen=True, slots=True)
class Lap:
    """The figures of one run of a contestant. Units: the peak is of resident memory, over the whole tree."""

    rows: int
    wall_s: float
    cpu_s: float
    peak_bytes: int

    @property
    def rows_per_s(self) -> float:
        """Return rows per second of wall time."""
        return self.rows / self.wall_s

    @property
    def cpu_s_per_million(self) -> float:
        """Return CPU seconds per million rows."""
        return self.cpu_s / self.rows * 1e6


def lap(work: Work, folder: Path) -> Lap:
    """Return the figures of the work; creating the folder and removing its files does not count."""
    folder.mkdir(parents=True)
    tree = ProcessTree(os.getpid())
    tree.reset_peak()
    used, begun = tree.usage().cpu_s, time.perf_counter()
    try:
        rows = work(folder)
        wall_s = time.perf_counter() - begun
        after = tree.usage()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Lap(rows, wall_s, after.cpu_s - used, after.peak_rss_bytes)


def contest(
    contestants: Mapping[str, Work], rounds: int, folder: Path, told: Callable[[str, Lap | None], None]
) -> dict[str, list[Lap]]:
    """Return the laps of each contestant. The warm-up round before the first is reported without its lap."""
    laps: dict[str, list[Lap]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for rank, (name, work) in enumerate(contestants.items()):
            found = lap(work, folder / f"lap-{number}-{rank}")
            if number:
                laps[name].append(found)
            told(name, found if number else None)
    return laps


def row(name: str, laps: list[Lap]) -> dict[str, Any]:
    """Return the figures of one contestant; other programs may use the machine, so the best wall time counts."""
    return {
        "name": name,
        "rows": laps[0].rows,
        "rows_per_s": max(one.rows_per_s for one in laps),
        "rows_per_s_median": median(one.rows_per_s for one in laps),
        "cpu_s_per_million": median(one.cpu_s_per_million for one in laps),
        "cpu_s_per_million_least": min(one.cpu_s_per_million for one in laps),
        "peak_bytes": max(one.peak_bytes for one in laps),
        "laps": [asdict(one) for one in laps],
    }


def line(found: Mapping[str, Any]) -> str:
    """Return the figures of one contestant as a line of text."""
    return (
        f"{found['name']:42} {found['rows_per_s']:12,.0f} rows/s {found['cpu_s_per_million']:8.2f} CPU-s per million"
        f" {found['peak_bytes'] / 1e6:8,.0f} MB"
    )
