"""Measures what operating a broker costs its messages: S1, S3 and S9 with everything on, beside everything off.

On means: the HTTP API and the metrics are served, Prometheus asks each second for the whole broker and for every queue,
and the stream of one open page runs. The runs alternate, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import compiled_build
from bench import brokers, machine
from bench.choices import choices
from bench.operated.watchers import Ports, Watchers
from bench.packages import compiled_package
from bench.results import keep, leave
from bench.rows import rows
from bench.scenario import QUICK, Limits, Scenario
from broker.perf.crew import RunFailed
from broker.perf.faults import Fault

GOAL: Final = 1.05
ONLY: Final = ("S1", "S3", "S9")
FIGURE: Final = "cpu_us"
ROUNDS: Final = 7


def main() -> int:
    """Measure, print and keep the figures, and return the exit code: 1 if the goal was missed or a run failed."""
    signal.signal(signal.SIGTERM, leave)
    options = options_of()
    try:
        package = brokers.PROJECT if options.interpreted else compiled_package()
    except compiled_build.CompileError as error:
        print(f"measuring it interpreted: {error}", file=sys.stderr)
        package = brokers.PROJECT
    limits = replace(QUICK if options.quick else Limits(), rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="slotmq-operated-") as name:
        found = machine.describe(Path(name))
        print("Machine: " + ", ".join(f"{fact} {value}" for fact, value in found.items()), flush=True)
        pairs, failures = measured(Path(name), package, rows(options.only), limits)
    print("\n" + table(pairs))
    for failure in failures:
        print(f"FAILED: {failure}")
    content = {"machine": found, "compiled": package != brokers.PROJECT, "quick": options.quick, "pairs": pairs}
    kept = keep(content | {"goal": GOAL, "failures": failures}, options.json, "operated")
    print(f"\nEvery run is in {kept}.")
    return int(bool(failures) or any(ratio_of(those) > GOAL for those in pairs.values()))


def measured(
    folder: Path, package: Path, scenarios: Sequence[Scenario], limits: Limits
) -> tuple[dict[str, list[dict[str, float]]], list[str]]:
    """Return for each scenario the figures of pairs of runs, off and on, and what failed."""
    ports = Ports()
    pairs: dict[str, list[dict[str, float]]] = {scenario.name: [] for scenario in scenarios}
    failures: list[str] = []
    with (
        brokers.slotmq(folder / "off", package=package, name="off", tenants=True) as off,
        brokers.slotmq(folder / "on", package=package, name="on", tenants=True, variables=ports.variables) as on,
    ):
        for number in range(limits.rounds):
            for scenario in scenarios:
                figures: dict[str, float] = {}
                for broker in (off, on) if number % 2 == 0 else (on, off):
                    try:
                        figures[broker.name] = run(broker, scenario, limits, ports if broker is on else None)
                    except (RunFailed, Fault, brokers.NotStarted, OSError) as error:
                        failures.append(f"{broker.name}, {scenario.name}: {error}")
                if len(figures) == 2:
                    pairs[scenario.name].append(figures)
                    print(f"{scenario.name:9} " + "  ".join(f"{k} {v:8.2f}" for k, v in sorted(figures.items())))
                    sys.stdout.flush()
    return pairs, failures


def run(broker: brokers.Broker, scenario: Scenario, limits: Limits, ports: Ports | None) -> float:
    """Return the CPU time per message of one run; with ports the broker is watched meanwhile."""
    if ports is None:
        return float(scenario.measure(broker, limits)[FIGURE])
    with Watchers(ports):
        return float(scenario.measure(broker, limits)[FIGURE])


def ratio_of(pairs: Sequence[dict[str, float]]) -> float:
    """Return the median of the ratios, on to off, 0 for none."""
    return statistics.median([pair["on"] / pair["off"] for pair in pairs]) if pairs else 0.0


def table(pairs: dict[str, list[dict[str, float]]]) -> str:
    """Return the medians of each scenario as text."""
    lines = [f"{'':9} {'off':>9} {'on':>9}   on / off, CPU-us per message; the goal is {GOAL:g}"]
    for name, those in pairs.items():
        if not those:
            lines.append(f"{name:9} not measured")
            continue
        ratios = sorted(pair["on"] / pair["off"] for pair in those)
        off, on = (statistics.median([pair[side] for pair in those]) for side in ("off", "on"))
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}, {len(those)} pairs"
        lines.append(f"{name:9} {off:9.2f} {on:9.2f}   {ratio_of(those):.3f}   ({spread})")
    return "\n".join(lines)


def options_of() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.operated", description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=choices(ONLY), default=ONLY, metavar="S1,S3", help="which scenarios")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs of runs of each scenario ({ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="short runs, which say little")
    parser.add_argument("--interpreted", action="store_true", help="measure the interpreted broker")
    parser.add_argument("--json", type=Path, help="where the runs are kept, instead of bench/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
