"""Measures a cluster, one broker and job queues on one PostgreSQL: what `make bench-cluster` runs.

Each round runs every case once, on a new cluster with a database of its own. The tables show medians of the rounds.
The database has fsync on. "brokers" is the CPU time of all nodes, or of a job queue's two processes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import compiled_build
from bench import machine
from bench.brokers import PROJECT, NotStarted
from bench.choices import choices
from bench.cluster import picture
from bench.cluster.cases import PARTS, Case, cases
from bench.cluster.failover import fail_over
from bench.cluster.ground import Ground, cpu_s
from bench.cluster.peer_race import race
from bench.cluster.report import TITLES, tables, verdicts
from bench.cluster.report import machine as machine_sentence
from bench.cluster.spread import run
from bench.packages import compiled_package
from bench.places import Places
from bench.plot import NoPicture
from bench.results import keep, leave, load
from broker.perf.crew import RunFailed
from broker.perf.faults import Fault

_LEASE_MS = 3000
_MESSAGES, _QUICK_MESSAGES = 100_000, 10_000
_ROUNDS = 3
_MINUTES = 12.0
_PLACES = Places("bench-cluster", "cluster")


def main() -> int:
    """Measure, store and draw what the command line asks for, and return the exit code."""
    signal.signal(signal.SIGTERM, leave)
    options = _options()
    if options.kept:
        content, kept = load(options.kept), options.kept.name
    else:
        begun = time.monotonic()
        content = _measure(options)
        content["seconds"] = round(time.monotonic() - begun, 1)
        kept = keep(content, options.json, "cluster-quick" if options.quick else "cluster")
    made = tables(content)
    for part, table in made.items():
        print(f"\n{TITLES.get(part, 'Fail-over')}\n\n{table}")
    print("\n" + "\n".join(verdicts(content)))
    print(f"\nEvery figure is in {kept}.")
    if options.page:
        places = made | {"machine": machine_sentence(content)}
        options.page.write_text(_PLACES.filled(options.page.read_text(), kept, lambda place: places[place]))
    if options.plot:
        try:
            picture.draw(options.plot, content)
        except NoPicture as error:
            print(error, file=sys.stderr)
            return 1
        print(f"Written: {options.plot}")
    return int(any("failure" in case for case in content["cases"]))


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    begun = time.monotonic()
    package = PROJECT if options.interpreted else compiled_package()
    print(f"Brokers: {_form(package)}", flush=True)
    chosen = [one for one in cases(_QUICK_MESSAGES if options.quick else _MESSAGES) if one.part in options.only]
    if "failover" in options.only:
        chosen.append(Case("failover", "node killed with -9", 2))
    results: dict[str, dict[str, Any]] = {one.key: {**asdict(one), "rounds": []} for one in chosen}
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as name:
        folder = Path(name)
        found = machine.describe(folder)
        print("Machine: " + ", ".join(f"{name} {value}" for name, value in found.items()))
        ground = Ground(folder, package, _LEASE_MS)
        version = ground.postgres.sql("SHOW server_version")
        try:
            for number in range(1 if options.quick else options.rounds):
                round_begun = time.monotonic()
                for one in chosen:
                    print(f"round {number + 1}: {one.key} ...", end=" ", flush=True)
                    figures = _guarded(one, ground)
                    print(_said(figures), flush=True)
                    if "failure" in figures:
                        results[one.key]["failure"] = figures["failure"]
                    else:
                        results[one.key]["rounds"].append(figures)
                now = time.monotonic()
                if now - begun + now - round_begun > options.minutes * 60:
                    break
        finally:
            ground.close()
    return {
        "machine": found,
        "postgresql": version,
        "lease_ms": _LEASE_MS,
        "compiled": not options.interpreted,
        "quick": options.quick,
        "cases": [result for result in results.values() if result["rounds"] or "failure" in result],
    }


def _form(package: Path) -> str:
    """Return how the brokers run: interpreted, or with which compiled modules."""
    if package == PROJECT:
        return f"interpreted, from {package}"
    sources = (package / compiled_build.STAMP).read_text()[:12]
    return f"{len(compiled_build.modules(package))} modules compiled by mypyc from sources {sources}, in {package}"


def _guarded(case: Case, ground: Ground) -> dict[str, Any]:
    try:
        return _figures(case, ground)
    except (NotStarted, RunFailed, Fault, OSError) as error:
        return {"failure": str(error).strip().splitlines()[-1]}


def _figures(case: Case, ground: Ground) -> dict[str, Any]:
    """Run a case and return its figures. Raises: NotStarted, RunFailed, Fault, OSError."""
    if case.peer:
        return race(case, ground)
    with ground.nodes(case.nodes) as brokers:
        if case.part == "failover":
            return fail_over(brokers)
        before_s, database_before_s = cpu_s(brokers), ground.database.usage().cpu_s
        figures = run(
            [brokers[number].address for number in case.publish_at],
            [brokers[number].address for number in case.consume_at],
            messages=case.messages,
            size_bytes=case.size,
            queues=case.queues,
            per_s=case.per_s,
        )
        figures["broker_us"] = (cpu_s(brokers) - before_s) / case.messages * 1e6
        if case.nodes:
            figures["database_us"] = (ground.database.usage().cpu_s - database_before_s) / case.messages * 1e6
        return figures


def _said(figures: dict[str, Any]) -> str:
    if "failure" in figures:
        return f"FAILED: {figures['failure']}"
    if "first_s" in figures:
        return f"{figures['first_s']:.2f} s"
    database = f", PostgreSQL {figures['database_us']:.1f}" if "database_us" in figures else ""
    return (
        f"{figures['per_s']:,.0f}/s, brokers {figures['broker_us']:.1f} us{database}, p50 {figures['p50_us']:,.0f} us"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages, one round")
    parser.add_argument("--only", type=choices(PARTS), default=PARTS, help=f"which parts, by commas: {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="default %(default)s")
    parser.add_argument(
        "--minutes", type=float, default=_MINUTES, help="begin no other round that would end later (%(default)g)"
    )
    parser.add_argument("--interpreted", action="store_true", help="run the brokers interpreted, not compiled")
    parser.add_argument("--dir", type=Path, help="where the data folders of brokers without a cluster go")
    parser.add_argument("--json", type=Path, help="write the figures here instead of bench/results")
    parser.add_argument("--plot", type=Path, help="draw the picture, such as docs/cluster.svg")
    parser.add_argument("--page", type=Path, help="fill in the tables of a page, such as docs/cluster.md")
    parser.add_argument("--kept", type=Path, help="measure nothing, show this run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
