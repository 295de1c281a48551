"""Measure SlotMQ: `python -m bench [messages|topics|growth|cluster|overlay|pipeline] --quick --only ...`.

Every suite prints its tables and saves the run as one small file in bench/results; `--page` fills a page from it.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench import machine
from bench.brokers import PROJECT
from bench.checkout import HERE, choices, package_at
from bench.picture import NoPicture, draw_all
from bench.run import RESULTS, Run, exit_on_signal, new_path
from bench.service import BrokerFailed
from bench.stage import COMPILED, INTERPRETED, Stage, quick, tell
from bench.suites import NAMES, Suite, suite_of

_INTERRUPTED = 130
_OPEN_FILES = 65_536


def main(words: Sequence[str] | None = None) -> int:
    """Measure or load a run, print it, draw and fill pages as the command line asks; return the exit code."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    words = list(sys.argv[1:] if words is None else words)
    name = words.pop(0) if words and words[0] in NAMES else NAMES[0]
    suite = suite_of(name)
    options = options_of(suite, words)
    try:
        if options.kept:
            run, kept = Run.load(options.kept), options.kept
        else:
            kept = options.json or new_path(f"{name}-quick" if options.quick else name)
            run = measured(suite, options, kept)
    except BrokerFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return _INTERRUPTED
    for place in suite.printed:
        if text := suite.tables[place](run):
            print(f"\n{place}\n\n{text}")
    for failure in run.failures:
        print(f"FAILED: {failure}")
    if run.facts.get("cut_short"):
        print("The time of this run was used up before everything was measured.")
    print(f"\nThe figures are in {kept.name}.")
    return _show(suite, run, kept, options) or int(bool(run.failures))


def measured(suite: Suite, options: argparse.Namespace, path: Path) -> Run:
    """Measure a suite, save the run, and return it. Raises: BrokerFailed."""
    begun = time.monotonic()
    _limit_open_files()
    packages = _packages(options)
    plan = quick(suite.plan) if options.quick else suite.plan
    if options.rounds:
        plan = replace(plan, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as name:
        found = machine.describe(Path(name))
        tell("Machine: " + ", ".join(f"{fact} {value}" for fact, value in found.items()))
        if found["load"] > found["cores"] / 2:
            tell("Other programs use this machine: all times will be too high.")
        facts = {"machine": found, "compiled": COMPILED in packages, "quick": options.quick, "plan": asdict(plan)}
        run = Run(suite.name, facts)
        stage = Stage(plan, packages, Path(name), run, begun + options.limit)
        suite.measure(stage, options, suite)
    run.facts["seconds"] = round(time.monotonic() - begun, 1)
    run.save(path)
    return run


def _packages(options: argparse.Namespace) -> dict[str, Path]:
    """Return the packages to measure: the compiled one first, unless --interpreted is given or compiling fails."""
    interpreted = {INTERPRETED: PROJECT}
    if options.interpreted:
        return interpreted
    try:
        tell("compiling, unless the compiled package is up to date")
        return {COMPILED: options.package or HERE.package(compiled=True)} | interpreted
    except BrokerFailed as reason:
        tell(f"measuring the sources as they are: {reason}")
        return interpreted


def _show(suite: Suite, run: Run, kept: Path, options: argparse.Namespace) -> int:
    """Draw the pictures and fill the page that the command line asks for; return the exit code."""
    folder = options.plot or (options.page.parent if options.page else None)
    if folder:
        try:
            for path in draw_all(suite.pictures, run, folder):
                print(f"Written: {path.name}")
        except NoPicture as error:
            print(error, file=sys.stderr)
            return 1
    if options.page:
        if not (RESULTS / kept.name).exists():
            print("--page shows a run that is in bench/results: leave out --json", file=sys.stderr)
            return 2
        options.page.write_text(suite.filled(options.page.read_text(), run, kept.name))
        print(f"Written: {options.page.name}")
    return 0


def _limit_open_files() -> None:
    """Limit open files: epmd and the Erlang VM iterate over all possible descriptors when they start."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def options_of(suite: Suite, words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {suite.name}", description=suite.about)
    parts = tuple(suite.parts)
    parser.add_argument("--quick", action="store_true", help="small numbers, few rounds: a few minutes")
    parser.add_argument("--only", type=choices(parts), default=parts, help=f"which parts, by commas: {','.join(parts)}")
    parser.add_argument("--rounds", type=int, help=f"rounds over all contestants ({suite.plan.rounds})")
    parser.add_argument(
        "--limit", type=float, default=suite.limit_s, help="start nothing after this many seconds (%(default)g)"
    )
    parser.add_argument("--interpreted", action="store_true", help="do not compile: measure the sources")
    parser.add_argument("--package", type=package_at, help="a folder with an already compiled package")
    parser.add_argument("--dir", type=_folder, help="where the brokers' data folders go: the disk to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run here instead of in bench/results")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the pictures into a folder")
    parser.add_argument("--page", type=Path, metavar="FILE", help="draw beside this page, and fill its tables")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="measure nothing, show this saved run")
    suite.add_options(parser)
    options = parser.parse_args(words)
    for path in (options.kept, options.page):
        if path and not path.is_file():
            parser.error(f"{path} does not exist")
    return options


def _folder(text: str) -> Path:
    path = Path(text)
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
