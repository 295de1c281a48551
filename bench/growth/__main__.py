"""`python -m bench.growth` measures whether the cost of a message stays flat, and whether everybody gets a share.

It starts SlotMQ, compiled as a wheel ships it where there is a compiler, on data folders of its own.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import compiled_build
from bench import machine
from bench.brokers import PROJECT
from bench.choices import choices
from bench.growth import picture, race, sharing, tables
from bench.growth.curves import PANELS, curves
from bench.growth.plan import FULL, QUICK
from bench.growth.race import Track
from bench.packages import compiled_package, package_at
from bench.plot import NoPicture
from bench.results import keep, leave, load

PARTS = (*PANELS, "fairness")
_LIMIT_S = 660.0  # a measurement that runs then may finish: under twelve minutes in all
_OPEN_FILES = 8192


def main() -> int:
    """Measure, or show a stored run, as the command line says, and return the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, leave)
    if options.kept:
        if not options.kept.is_file():
            print(f"{options.kept} is not there", file=sys.stderr)
            return 2
        content = load(options.kept)
        print(tables.summary(content))
        return _draw(options.plot, content)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, _OPEN_FILES), hard), hard))
    begun = time.monotonic()
    package, compiled = _package(options)
    track = Track(QUICK if options.quick else FULL, package, options.dir, _tell, begun + options.limit, [])
    content = _measure(options.only, track, compiled=compiled)
    content["seconds"] = round(time.monotonic() - begun, 1)
    name = keep(content, options.json, "growth")
    print(tables.summary(content))
    print(f"Kept in {name}; this took {content['seconds']:.0f} s.")
    return _draw(options.plot, content) or int(bool(track.failures))


def _measure(parts: Sequence[str], track: Track, *, compiled: bool) -> dict[str, Any]:
    """Return all measurements."""
    with tempfile.TemporaryDirectory(prefix="slotmq-growth-", dir=track.folder) as folder:
        described = machine.describe(Path(folder))
    _tell(f"Machine: {', '.join(f'{name} {value}' for name, value in described.items())}")
    content: dict[str, Any] = {
        "machine": described,
        "compiled": compiled,
        "quick": track.plan == QUICK,
        "curves": [],
        "fairness": None,
        "failures": track.failures,
    }
    if "fairness" in parts:
        content["fairness"] = sharing.measure(track)
    for curve in curves(track.plan):
        if curve.panel in parts and not track.late():
            cells = race.measure(curve, track)
            if cells:
                content["curves"].append(
                    {"panel": curve.panel, "name": curve.name, "title": curve.title, "cells": cells}
                )
    return content


def _package(options: argparse.Namespace) -> tuple[Path, bool]:
    """Return the folder of the measured package, and whether it is compiled."""
    if options.interpreted:
        return PROJECT, False
    if options.package:
        return options.package, True
    try:
        _tell("compiling, unless that was done already")
        return compiled_package(), True
    except compiled_build.CompileError as reason:
        _tell(f"measuring the sources as they are: {reason}")
        return PROJECT, False


def _draw(target: Path | None, content: dict[str, Any]) -> int:
    """Draw a run where the command line asks for it, and return the exit code."""
    if target is None:
        return 0
    try:
        _tell(f"Written: {picture.draw(target, content).name}")
    except NoPicture as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes of each, short rounds: about a minute")
    parser.add_argument("--only", type=choices(PARTS), default=PARTS, help=f"which parts, by commas: {','.join(PARTS)}")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="begin nothing later than this (%(default)g s)")
    parser.add_argument("--interpreted", action="store_true", help="do not compile: measure the sources as they are")
    parser.add_argument("--package", type=package_at, help="a folder that compiled_build.py has written already")
    parser.add_argument("--dir", type=Path, help="where the brokers' data folders go; they take up to 3 GB")
    parser.add_argument("--json", type=Path, help="write the figures here instead of bench/results")
    parser.add_argument("--plot", type=Path, help="draw the picture, such as docs/growth.svg")
    parser.add_argument("--kept", type=Path, help="measure nothing, show this run")
    options = parser.parse_args()
    if options.dir and not options.dir.is_dir():
        parser.error(f"--dir: {options.dir} is no folder")
    return options


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
