"""Profiles SlotMQ under one scenario and prints where the time of a message goes.

`python -m bench.profile --scenario S3-16` runs the broker under cProfile: calls per message are exact; times
are inflated by the profiler and good for comparison only. `--py-spy OUT.svg` samples an unchanged broker instead,
threads included, if py-spy is installed and may attach.
"""

from __future__ import annotations

import argparse
import pstats
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import brokers
from bench.messages.flow import Flow
from bench.messages.rows import GROUPS, rows
from bench.messages.scenario import Limits
from bench.run import Figures, leave
from broker.perf.crew import RunFailed

_SAMPLER_SPARE_S = 1.0


def main() -> int:
    """Run the profile that the command line asks for and return the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, leave)
    try:
        return _sample(options) if options.py_spy else _trace(options)
    except (brokers.NotStarted, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1


def _trace(options: argparse.Namespace) -> int:
    """Run the broker under cProfile, stop it, and print the profile."""
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-") as folder:
        written = options.out or Path(folder) / "broker.prof"
        prefix = ("-m", "cProfile", "-o", str(written.resolve()))
        with brokers.slotmq(Path(folder), prefix=prefix) as broker:
            run = options.scenario.measure(broker, options.limits)
        _print_costs(written, options.scenario, run, options.top)
    return 0


def _sample(options: argparse.Namespace) -> int:
    """Run the broker unchanged and let py-spy sample it into a flame graph."""
    sampler = shutil.which("py-spy")
    if not sampler:
        print("py-spy is not installed: pip install py-spy, or leave --py-spy out to use cProfile", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-") as folder, ExitStack() as stack:
        broker = stack.enter_context(brokers.slotmq(Path(folder)))
        if not broker.processes:
            return 1
        seconds = options.limits.seconds + _SAMPLER_SPARE_S
        command = [sampler, "record", "--threads", "--pid", str(broker.processes.root)]
        command += ["--duration", f"{seconds:.0f}", "--output", str(options.py_spy)]
        sampling = subprocess.Popen(command)
        run = options.scenario.measure(broker, replace(options.limits, messages=sys.maxsize))
        sampling.wait()
    print(f"{run['messages']:,} messages, {run['per_s']:,.0f}/s; flame graph in {options.py_spy.name}")
    return sampling.returncode


def _print_costs(written: Path, scenario: Flow, run: Figures, top: int) -> None:
    stats: Any = pstats.Stats(str(written))
    costs = [
        (own_s / run["messages"] * 1e6, calls / run["messages"], place)
        for place, (_, calls, own_s, _, _) in stats.stats.items()
    ]
    costs.sort(reverse=True)
    print(
        f"{scenario.name}, {scenario.title}: {run['messages']:,} messages, {run['per_s']:,.0f}/s and "
        f"{run['cpu_us']:.1f} CPU-us under cProfile"
    )
    print(f"{'own us/msg':>11}{'calls/msg':>11}  function")
    for own_us, calls, (path, line, name) in costs[:top]:
        print(f"{own_us:11.3f}{calls:11.3f}  {_place(path, line)}{name}")


def _place(path: str, line: int) -> str:
    """Return a function's place relative to the project, empty for a built-in function."""
    if not line:
        return ""
    try:
        return f"{Path(path).relative_to(brokers.PROJECT)}:{line} "
    except ValueError:
        return f"{Path(path).name}:{line} "


def _options() -> argparse.Namespace:
    flows = {one.name: one for one in rows(GROUPS) if isinstance(one, Flow)}
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", choices=flows, default="S3-16", help="what to run (%(default)s)")
    parser.add_argument("--messages", type=int, default=200_000, help="at most so many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="publish at most so long (%(default)s)")
    parser.add_argument("--top", type=int, default=40, help="how many functions to print (%(default)s)")
    parser.add_argument("--out", type=Path, help="keep the cProfile figures, for pstats or snakeviz")
    parser.add_argument("--py-spy", type=Path, help="sample with py-spy and write a flame graph here instead")
    options = parser.parse_args()
    options.scenario = flows[options.scenario]
    options.limits = replace(Limits(), messages=options.messages, seconds=options.seconds)
    return options


if __name__ == "__main__":
    sys.exit(main())
