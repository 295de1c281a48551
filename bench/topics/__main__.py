"""Measures the topic index beside the figures of the articles it follows: what `make bench-topics` runs."""

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
from bench.packages import package_at
from bench.places import page_at
from bench.plot import NoPicture
from bench.results import RESULTS, keep, leave, load
from bench.topics import blog, caching, claims, hostility, page, pictures, sizes, traffic
from bench.topics.cell import INTERPRETED, NoAnswer, Package, compiled_package
from bench.topics.plan import PARTS, QUICK, WHOLE
from bench.topics.stage import Stage
from bench.topics.tables import goals_table
from broker import compiled

_LIMIT_S = 600.0
_MEASURES: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "claims": claims.measure,
    "blog": blog.measure,
    "sizes": sizes.measure,
    "hostile": hostility.measure,
    "cache": caching.measure,
    "broker": traffic.measure,
}


def main() -> int:
    """Measure, store, draw and write what the command line asks for, and return the exit code."""
    signal.signal(signal.SIGTERM, leave)
    options = _options()
    if options.page and options.kept:
        return _show(options.kept, options.page)
    begun = time.monotonic()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as name:
        folder = Path(name)
        found = machine.describe(folder)
        _tell("Machine: " + ", ".join(f"{name} {value}" for name, value in found.items()))
        if found["load"] > found["cores"] / 2:
            _tell("Others use this machine: times will be too high for everybody.")
        plan = QUICK if options.quick else WHOLE
        stage = Stage(plan, _packages(options, folder), folder, _tell, begun + options.limit)
        parts: dict[str, Any] = {}
        for part in options.only:
            if stage.late():
                failures.append(f"{part}: the time of this run was used up")
                continue
            part_begun = time.monotonic()
            try:
                parts[part] = _MEASURES[part](stage)
            except (NoAnswer, NotStarted, OSError) as error:
                failures.append(f"{part}: {error}")
                _tell(f"{part} FAILED: {error}")
            else:
                parts[part]["seconds"] = round(time.monotonic() - part_begun, 1)
    content = {
        "machine": found,
        "quick": options.quick,
        "parent": compiled.kind(),
        "forms": [package.form for package in stage.packages],
        "parts": parts,
        "failures": failures,
        "seconds": round(time.monotonic() - begun, 1),
    }
    if options.into:
        content = _replaced(load(options.into), content)
        options.json = options.into
    kept = keep(content, options.json, "topics-quick" if options.quick else "topics")
    if "sizes" in parts:
        _tell(goals_table(parts))
    _tell(f"Every figure is in {kept}; this took {time.monotonic() - begun:.0f} s.")
    if options.page:
        return _show(options.json or RESULTS / kept, options.page) or bool(failures)
    return bool(failures)


def _replaced(kept: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return a stored run with the newly measured parts replaced, and the time of their measurement."""
    again = kept.get("again", {}) | dict.fromkeys(content["parts"], f"behind the run of {kept.pop('written')}")
    failures = [failure for failure in kept["failures"] if failure.partition(":")[0] not in content["parts"]]
    parts = kept["parts"] | content["parts"]
    return kept | {"parts": parts, "failures": failures + content["failures"], "again": again}


def _packages(options: argparse.Namespace, folder: Path) -> list[Package]:
    """Return the forms of the broker to measure: interpreted, and compiled if possible."""
    if options.compiled:
        return [INTERPRETED, Package("compiled", options.compiled)]
    if options.interpreted or options.quick:
        return [INTERPRETED]
    _tell("compiling")
    try:
        return [INTERPRETED, compiled_package(folder / "compiled")]
    except NoAnswer as reason:
        _tell(f"measuring interpreted only: {reason}")
        return [INTERPRETED]


def _show(kept: Path, target: Path) -> int:
    """Draw the pictures and write the tables of a stored run into a page and beside it."""
    content = load(kept)
    try:
        drawn = pictures.draw_all(content, target.parent)
    except NoPicture as error:
        print(error, file=sys.stderr)
        return 1
    target.write_text(page.filled(target.read_text(), content, kept.name))
    _tell(f"Written: {target.name}, {', '.join(path.name for path in drawn)}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, not compiled: a minute")
    parser.add_argument("--only", type=choices(PARTS), default=PARTS, help=f"which parts, by commas: {','.join(PARTS)}")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="begin no engine later than this (%(default)g s)")
    parser.add_argument("--interpreted", action="store_true", help="do not compile: measure the sources as they are")
    parser.add_argument("--compiled", type=package_at, help="a folder that compiled_build.py has written already")
    parser.add_argument("--dir", type=Path, help="where temporary files and the brokers' data folders go")
    parser.add_argument("--json", type=Path, help="write the figures here instead of bench/results")
    parser.add_argument("--into", type=Path, help="replace what is measured in this kept run, which says so")
    parser.add_argument("--page", type=page_at, help="fill the tables of this page and draw the pictures beside it")
    parser.add_argument("--kept", type=Path, help="with --page: measure nothing, show this run")
    return parser.parse_args()


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
