"""Compares this checkout with another in pairs of runs: the ratio of the medians, and the spread of the pairs.

`python -m bench.pairs ../before --pairs 15 --only S9,S3-16`. Single runs on a shared machine vary by 30 %; the two
runs of a pair follow each other, the order alternates (A B, B A), and every run has a fresh broker.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from bench import brokers, machine
from bench.brokers import Certificate
from bench.checkout import HERE, Checkout, choices
from bench.messages.limits import Limits
from bench.messages.rows import Scenario, known_names, measure_of, rows
from bench.run import exit_on_signal
from bench.service import BrokerFailed
from bench.stage import NotOffered, quick
from broker.figures.numerals import number_text
from broker.perf.faults import Fault, RunFailed

PAIRS: Final = 15
BEFORE, NOW = "before", "now"

Pair = Mapping[str, float]
"""The figures of two runs, by BEFORE and NOW."""


def main() -> int:
    """Measure, print a line for each pair and each scenario, and return the exit code."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    options = _options()
    try:
        compiled = not options.interpreted
        packages = {BEFORE: options.before.package(compiled=compiled), NOW: HERE.package(compiled=compiled)}
    except BrokerFailed as error:
        print(error, file=sys.stderr)
        return 1
    limits = quick(Limits()) if options.quick else Limits()
    limits = replace(limits, rounds=1, seconds=options.seconds or limits.seconds)
    pairs: dict[str, list[Pair]] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="slotmq-pairs-", dir=options.dir) as name:
        found = machine.describe(Path(name))
        for turn in range(options.pairs):
            for scenario in rows(options.only, limits):
                figure = options.figure or measure_of(scenario.name)
                try:
                    pair = _measured(Path(name), packages, scenario, figure, turn, limits)
                except NotOffered:
                    failures.append(f"{scenario.name}: the broker lacks TLS (openssl is not installed) or MQTT")
                    continue
                except (RunFailed, Fault, BrokerFailed, OSError) as error:
                    failures.append(f"{scenario.name}: {error}")
                    continue
                pairs.setdefault(scenario.name, []).append(pair)
                before, now = (number_text(pair[side]) for side in (BEFORE, NOW))
                print(f"{scenario.name:14} {BEFORE} {before:>9}  {NOW} {now:>9}", flush=True)
    print()
    for scenario_name, own in pairs.items():
        print(summary(scenario_name, options.figure or measure_of(scenario_name), own))
    for failure in failures:
        print(f"FAILED: {failure}")
    if options.json:
        content = {"machine": found, "compiled": compiled, "before": options.before.name, "pairs": pairs}
        options.json.write_text(json.dumps(content | {"failures": failures}, indent=1))
    return int(bool(failures))


def _measured(
    folder: Path, packages: Mapping[str, Path], scenario: Scenario, figure: str, turn: int, limits: Limits
) -> Pair:
    """Run a scenario on a fresh broker of each package, in an order that alternates.

    Raises: RunFailed, Fault, BrokerFailed, NotOffered, OSError.
    """
    figures = {}
    certificate = Certificate.issue(folder)
    for side in (BEFORE, NOW) if turn % 2 == 0 else (NOW, BEFORE):
        home = folder / f"{scenario.name}-{turn}-{side}"
        with brokers.slotmq(home, package=packages[side], tenants=True, certificate=certificate) as broker:
            figures[side] = scenario.measure(broker, limits)[figure]
    return figures


def summary(scenario: str, figure: str, pairs: Sequence[Pair]) -> str:
    """Return the medians, their ratio, and the ratios of single pairs, in one line."""
    before, now = (median(pair[side] for pair in pairs) for side in (BEFORE, NOW))
    ratios = sorted(pair[NOW] / pair[BEFORE] for pair in pairs)
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    lower = sum(ratio < 1 for ratio in ratios)
    return (
        f"{scenario:14} {figure} {number_text(before)} -> {number_text(now)}: {now / before:.3f} times; "
        f"half of the pairs {low:.2f} to {high:.2f}, all {ratios[0]:.2f} to {ratios[-1]:.2f}, "
        f"less in {lower} of {len(ratios)}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Checkout.of, help="the source tree to compare with")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of runs of each scenario (%(default)s)")
    parser.add_argument(
        "--only",
        type=choices(known_names()),
        default=("S1", "S3", "S9"),
        metavar="NAMES",
        help="scenarios or groups of them (S1,S3,S9)",
    )
    parser.add_argument("--figure", help="compare this figure, such as p99_us; by default what `make bench` compares")
    parser.add_argument("--seconds", type=float, help="publish for this many seconds per run")
    parser.add_argument("--quick", action="store_true", help="shorter runs, with small numbers")
    parser.add_argument("--interpreted", action="store_true", help="do not compile the broker")
    parser.add_argument("--dir", type=Path, help="where the brokers' data folders go")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every pair into a file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
