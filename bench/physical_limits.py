"""The lower bounds of each scenario for any broker: a bare relay, a bare append + fdatasync loop, system calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from bench.append_limit import append_limit
from bench.meter import Figures
from bench.scenario import Limits, Scenario
from bench.suite import Run

_APPEND_SECONDS = 1.0
_LONE_BATCH = 1


def append_limits(
    scenarios: Iterable[Scenario], runs: Sequence[Run], broker: str, folder: Path, seconds: float = _APPEND_SECONDS
) -> dict[str, Figures]:
    """Return for every persistent scenario the cost of only appending and syncing the batches of `broker`.

    A batch is the messages covered by one frame of confirms, as a median of the runs.
    """
    found = {}
    for scenario in scenarios:
        batches = [_batch(run) for run in runs if run.scenario == scenario.name and run.broker == broker]
        if scenario.record_bytes and batches:
            found[scenario.name] = append_limit(folder, scenario.record_bytes, round(median(batches)), seconds)
    return found


def least_calls(scenarios: Iterable[Scenario], limits: Limits) -> dict[str, Figures]:
    """Return for every scenario the least number of reads and writes per message."""
    found = {}
    for scenario in scenarios:
        calls = scenario.least_calls(limits)
        if calls:
            found[scenario.name] = {"reads": calls[0], "writes": calls[1]}
    return found


def _batch(run: Run) -> float:
    frames = run.figures.get("confirm_frames", 0)
    return max(_LONE_BATCH, run.figures["messages"] / frames) if frames else _LONE_BATCH
