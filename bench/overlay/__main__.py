"""Measures the overlay: the four experiments of the Gryphon paper, and what a forwarded message costs beside S1.

This is what `make bench-overlay` runs. A part that fails or takes too long leaves the figures of the others alone; the
run is written after each part.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import compiled_build
from bench import machine
from bench.brokers import PROJECT, NotStarted
from bench.choices import choices
from bench.overlay import cost, crashes, hops, leaves, load, picture
from bench.overlay.plan import FULL, QUICK, Row, Stage
from bench.overlay.report import TITLES, tables
from bench.overlay.report import machine as machine_sentence
from bench.packages import compiled_package, package_at
from bench.places import Places, page_at
from bench.plot import NoPicture
from bench.results import RESULTS, keep, leave
from bench.results import load as load_kept
from broker.perf.crew import RunFailed
from broker.perf.faults import Fault

LIMITS_S = {"cost": 200.0, "load": 180.0, "hops": 150.0, "failure": 150.0, "leaves": 200.0}
"""The parts in the order of measurement, and how long each may take at most; the last one has figures step by step."""

COMPILED, INTERPRETED = "compiled", "interpreted"
_MINUTES = 11.0
PLACES = Places("bench-overlay", "overlay")

Part = Callable[[Stage, list[Row]], None]


def main() -> int:
    """Measure, store and draw what the command line asks for, and return the exit code."""
    signal.signal(signal.SIGTERM, leave)
    options = options_of()
    if options.kept:
        content, kept = load_kept(options.kept), options.kept.name
    else:
        kind = "overlay-quick" if options.quick else "overlay"
        path = options.json or RESULTS / f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
        content, kept = _measure(options, path), path.name
    made = tables(content)
    for part, table in made.items():
        print(f"\n{TITLES[part]}\n\n{table}")
    for text in content["failures"]:
        print(f"\nFAILED: {text}")
    print(f"\nEvery figure is in {kept}.")
    shown = _show(content, kept, options)
    return int(bool(content["failures"]) or not shown)


def filled(text: str, content: Mapping[str, Any], name: str) -> str:
    """Return a page with the tables and the name of a kept run filled in. Raises: KeyError for an unknown place."""
    places = dict.fromkeys(TITLES, "Not measured.") | tables(content) | {"machine": machine_sentence(content)}
    return PLACES.filled(text, name, lambda place: places[place])


def _show(content: dict[str, Any], kept: str, options: argparse.Namespace) -> bool:
    """Fill the page and draw the picture that were asked for; return whether both could be done."""
    if options.page:
        options.page.write_text(filled(options.page.read_text(), content, kept))
        print(f"Written: {options.page}")
    if options.plot:
        try:
            print(f"Written: {picture.draw(options.plot, content)}")
        except NoPicture as error:
            print(error, file=sys.stderr)
            return False
    return True


def _measure(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Measure part after part within the time, and write the run to `path` after each."""
    begun = time.monotonic()
    deadline = begun + options.minutes * 60
    packages = _packages(options)
    content: dict[str, Any] = {
        "compiled": COMPILED in packages,
        "quick": options.quick,
        "parts": {},
        "failures": [],
    }
    with tempfile.TemporaryDirectory(prefix="slotmq-overlay-", dir=options.dir) as name:
        content["machine"] = machine.describe(Path(name))
        _tell("Machine: " + ", ".join(f"{fact} {value}" for fact, value in content["machine"].items()))
        stage = Stage(QUICK if options.quick else FULL, next(iter(packages.values())), Path(name), _tell)
        parts: dict[str, Part] = {
            "cost": partial(cost.measure, packages=packages),
            "load": load.measure,
            "hops": hops.measure,
            "failure": crashes.measure,
            "leaves": leaves.measure,
        }
        for part in options.only:
            rows: list[Row] = []
            content["parts"][part] = rows
            limit_s = min(LIMITS_S[part], deadline - time.monotonic())
            failure = guarded(parts[part], stage, rows, limit_s)
            if failure:
                content["failures"].append(f"{part}: {failure}")
                _tell(f"FAILED: {part}: {failure}")
            content["seconds"] = round(time.monotonic() - begun, 1)
            keep(content, path, "overlay")
    return content


def _packages(options: argparse.Namespace) -> dict[str, Path]:
    """Return the packages to measure: compiled first, unless only the sources are asked for or nothing compiles."""
    interpreted = {INTERPRETED: PROJECT}
    if options.interpreted:
        return interpreted
    if options.package:
        return {COMPILED: options.package} | interpreted
    try:
        _tell("compiling, unless that was done already")
        return {COMPILED: compiled_package()} | interpreted
    except compiled_build.CompileError as reason:
        _tell(f"measuring the sources as they are: {reason}")
        return interpreted


def guarded(part: Part, stage: Stage, rows: list[Row], limit_s: float) -> str:
    """Measure a part, and return why it ended early, or nothing."""
    if limit_s <= 0:
        return "the time was used up"
    try:
        with _limited(limit_s):
            part(stage, rows)
    except (NotStarted, RunFailed, Fault, OSError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[-1]
    except Exception as error:  # noqa: BLE001 - a defect in one part must not cost the figures of the others
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise RunFailed in the block when it takes longer than this."""

    def expire(_number: int, _frame: FrameType | None) -> NoReturn:
        raise RunFailed(f"stopped after {limit_s:.0f} s")

    handler = signal.signal(signal.SIGALRM, expire)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.overlay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: under two minutes")
    parts = tuple(LIMITS_S)
    parser.add_argument("--only", type=choices(parts), default=parts, help=f"which parts, by commas: {','.join(parts)}")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="end after this time at most (%(default)g)")
    parser.add_argument("--interpreted", action="store_true", help="do not compile: measure the sources as they are")
    parser.add_argument("--package", type=package_at, help="a folder that compiled_build.py has written already")
    parser.add_argument("--dir", type=Path, help="where the brokers' data folders go")
    parser.add_argument("--json", type=Path, help="write the figures here instead of bench/results")
    parser.add_argument("--plot", type=Path, help="draw the picture, such as docs/overlay-figures.svg")
    parser.add_argument("--page", type=page_at, help="fill in the tables of a page, such as docs/figures.md")
    parser.add_argument("--kept", type=Path, help="measure nothing, show this run")
    return parser.parse_args(words)


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
