"""Measures the pipeline beside Spark's own Parquet reader and writer: what `make bench-pipeline` runs."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine
from bench.brokers import NotStarted
from bench.choices import choices
from bench.pipeline import archiving, commanding, growth, latency, picture, querying, replaying, routing
from bench.pipeline.goals import goals
from bench.pipeline.plan import PARTS, QUICK, WHOLE
from bench.pipeline.show import Show
from bench.pipeline.stage import Stage, WrongResult
from bench.plot import NoPicture
from bench.results import keep, leave, load
from broker.pipeline.faults import JobFailed

_LIMIT_S = 1800.0
_MEASURES: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "commands": commanding.measure,
    "archive": archiving.measure,
    "sql": querying.measure,
    "route": routing.measure,
    "replay": replaying.measure,
    "latency": latency.measure,
    "growth": growth.measure,
}


def main() -> int:
    """Measure, store and draw what the command line asks for, and return the exit code."""
    signal.signal(signal.SIGTERM, leave)
    options = _options()
    if options.kept:
        return _draw(load(options.kept), options.plot)
    begun = time.monotonic()
    if options.dir is not None:
        Path(options.dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as name, Show() as show:
        folder = Path(name)
        found = machine.describe(folder)
        show.tell("Machine: " + ", ".join(f"{name} {value}" for name, value in found.items()))
        if found["load"] > found["cores"] / 2:
            show.tell("Others use this machine: times will be too high for everybody.")
        stage = Stage(QUICK if options.quick else WHOLE, folder, show, begun + options.limit)
        parts, failures = _measure(stage, options.only)
    content = {
        "machine": found,
        "quick": options.quick,
        "plan": {name: getattr(stage.plan, name) for name in stage.plan.__slots__},
        "goals": [] if options.quick else goals(parts),  # small sizes measure the fixed cost of a job
        "parts": parts,
        "failures": failures,
        "seconds": round(time.monotonic() - begun, 1),
    }
    for goal in content["goals"]:
        print(goal["text"])
    kept = keep(content, options.json, "pipeline-quick" if options.quick else "pipeline")
    print(f"Every figure is in {kept}; this took {time.monotonic() - begun:.0f} s.")
    if options.plot:
        return _draw(content, options.plot) or bool(failures)
    return bool(failures)


def _measure(stage: Stage, only: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    parts: dict[str, Any] = {}
    failures: list[str] = []
    for part in only:
        if stage.late():
            failures.append(f"{part}: the time of this run was used up")
            continue
        part_begun = time.monotonic()
        try:
            parts[part] = _MEASURES[part](stage)
        except (WrongResult, JobFailed, NotStarted, OSError) as error:
            failures.append(f"{part}: {error}")
            stage.show.tell(f"{part} FAILED: {error}")
        else:
            parts[part]["seconds"] = round(time.monotonic() - part_begun, 1)
    return parts, failures


def _draw(content: dict[str, Any], target: Path) -> int:
    try:
        picture.draw(content, target)
    except NoPicture as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Written: {target}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: two minutes")
    parser.add_argument("--only", type=choices(PARTS), default=PARTS, help=f"which parts, by commas: {','.join(PARTS)}")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="begin no part later than this (%(default)g s)")
    parser.add_argument("--dir", type=Path, help="where slots, lakes and the brokers' data folders go")
    parser.add_argument("--json", type=Path, help="write the figures here instead of bench/results")
    parser.add_argument("--plot", type=Path, help="draw the picture, such as docs/pipeline.svg")
    parser.add_argument("--kept", type=Path, help="with --plot: measure nothing, draw this run")
    options = parser.parse_args()
    if options.kept and not options.plot:
        parser.error("--kept needs --plot")
    return options


if __name__ == "__main__":
    sys.exit(main())
