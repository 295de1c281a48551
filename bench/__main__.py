"""Measures SlotMQ compiled and interpreted, beside RabbitMQ where it is installed: what `make bench` runs."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import compiled_build
from bench import brokers, machine, page, plot
from bench.certificate import Certificate
from bench.choices import choices
from bench.measured import COMPILED, INTERPRETED, Measured
from bench.packages import compiled_package, package_at
from bench.physical_limits import append_limits, least_calls
from bench.places import page_at
from bench.report import ceiling_text, goals_text, report_text, steadiness_text
from bench.results import RESULTS, keep, leave, load
from bench.rows import GROUPS, for_all, known_names, rows, titles
from bench.scenario import QUICK, Limits, Scenario
from bench.suite import Suite
from broker.perf.peer import Address
from broker.perf.process_tree import ProcessTree

_LIMIT_S = 1140.0
_INTERRUPTED = 130
_BROKERS = ("compiled", "interpreted", "rabbitmq")


def main() -> int:
    """Run the measurements, store, draw and write what the command line asks for, and return the exit code."""
    signal.signal(signal.SIGTERM, leave)
    options = _options()
    if options.kept:
        return _show(load(options.kept), options.kept.name, options)
    try:
        return _bench(options)
    except brokers.NotStarted as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped by Ctrl-C: nothing is kept", file=sys.stderr)
        return _INTERRUPTED


def _bench(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as name:
        folder = Path(name)
        found = machine.describe(folder)
        _tell("Machine: " + ", ".join(f"{name} {value}" for name, value in found.items()))
        if found["load"] > found["cores"] / 2:
            _tell("Others use this machine: CPU time per message will be too high for every broker.")
        start = Starter(folder, options)
        scenarios = rows(options.only, quick=options.quick)
        deadline = begun + options.limit
        suite = Suite(start.stage, scenarios, options.limits, deadline, _tell, options.quick, start.skips)
        with brokers.relay() as relay:
            suite.run_ceiling(relay)
        suite.run()
        if not start.products:
            print("No broker to measure.", file=sys.stderr)
            return 1
        ours = COMPILED if COMPILED in start.products else INTERPRETED
        append = append_limits(scenarios, suite.runs, ours, folder)
    content = {
        "machine": found,
        "products": start.products,
        "quick": options.quick,
        "fsync": not options.no_sync,
        "limits": asdict(options.limits),
        "titles": titles(scenarios),
        "runs": [run.record() for run in suite.runs],
        "append_limits": append,
        "least_calls": least_calls(scenarios, options.limits),
        "failures": suite.failures,
        "cut_short": suite.cut_short,
        "seconds": round(time.monotonic() - begun, 1),
    }
    _print(Measured.of(content), content)
    kept = keep(content, options.json, "bench")
    print(f"Every run is in {kept}; this took {time.monotonic() - begun:.0f} s.")
    return _show(content, kept, options) or bool(suite.failures)


def _print(measured: Measured, content: dict[str, Any]) -> None:
    print("\n" + report_text(measured))
    print("\n" + ceiling_text(measured))
    print(steadiness_text(measured.steps_ns))
    for failure in content["failures"]:
        print(f"FAILED: {failure}")
    if content["cut_short"]:
        print("The time of this run was used up before everything was measured.")
    for applies, why in ((content["quick"], "a quick run"), (not content["fsync"], "a run without fsync")):
        if applies:
            print(f"\nThis is {why}: floors and goals ask for more.")
    print("\n" + goals_text(measured, small=content["quick"]))


class Starter:
    """Starts all brokers of a stage at once: those that are not measured sit idle.

    Raises: NotStarted immediately, when the broker at --url cannot be used.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._wanted = list(options.brokers)
        self._package: Path | None = None
        self._certificate = Certificate.issue(folder)
        self.products: dict[str, str] = {}
        if "rabbitmq" in self._wanted and not brokers.rabbitmq_script():
            _tell("rabbitmq-server is not installed: measuring without it.")
            self._wanted.remove("rabbitmq")
        if options.url:
            self._given().product()  # detect an unreachable broker before the slow steps
        if "compiled" in self._wanted:
            self._compile()

    def _compile(self) -> None:
        """Build the package as a wheel ships it; without a compiler only the interpreted one is measured."""
        begun = time.monotonic()
        try:
            self._package = self._options.package or compiled_package()
        except compiled_build.CompileError as error:
            _tell(f"Measuring SlotMQ only interpreted: {error}")
            self._wanted.remove("compiled")
        else:
            _tell(f"The compiled package is there after {time.monotonic() - begun:.0f} s.")

    def skips(self, broker: brokers.Broker, scenario: Scenario) -> bool:
        """Return whether a broker is left out of a scenario: SlotMQ interpreted of some, if it is measured compiled."""
        return broker.name == INTERPRETED and self._package is not None and not for_all(scenario)

    @contextmanager
    def stage(self, name: str) -> Iterator[Sequence[brokers.Broker]]:
        """Run fresh brokers for a stage, and use the one at --url as it is.

        Raises: NotStarted, except for RabbitMQ, without which the other brokers are still measured.
        """
        folder = self._folder / name
        flags = ("--no-sync",) if self._options.no_sync else ()
        with ExitStack() as stack:
            running: list[brokers.Broker] = []
            if self._package:
                broker = brokers.slotmq(
                    folder / "compiled",
                    options=flags,
                    package=self._package,
                    name=COMPILED,
                    tenants=True,
                    certificate=self._certificate,
                )
                running.append(stack.enter_context(broker))
            if "interpreted" in self._wanted:
                broker = brokers.slotmq(folder / "interpreted", options=flags, name=INTERPRETED, tenants=True)
                running.append(stack.enter_context(broker))
            if "rabbitmq" in self._wanted:
                running += self._rabbitmq(stack, folder)
            if self._options.url:
                running.append(self._given())
            for one in running:
                if one.name not in self.products:
                    self.products[one.name] = one.product()
                    _tell(f"{one.name}: {self.products[one.name]}")
            yield running

    def _rabbitmq(self, stack: ExitStack, folder: Path) -> list[brokers.Broker]:
        script = brokers.rabbitmq_script() or ""
        try:
            return [stack.enter_context(brokers.rabbitmq(folder, script, tenants=True, certificate=self._certificate))]
        except brokers.NotStarted as error:
            _tell(f"Measuring without RabbitMQ: {error}")
            return []

    def _given(self) -> brokers.Broker:
        options = self._options
        processes = ProcessTree(options.pid) if options.pid else None
        idle_bytes = processes.usage().rss_bytes if processes else 0
        return brokers.Broker(
            options.name, options.url, processes, other=options.url, tls=options.tls_url, idle_bytes=idle_bytes
        )


def _show(content: dict[str, Any], name: str, options: argparse.Namespace) -> int:
    """Draw the pictures and fill the page that the command line asks for."""
    if options.kept:
        _print(Measured.of(content), content)
    folder = options.plot or (options.page.parent if options.page else None)
    if folder:
        try:
            for path in plot.draw_all(content, folder):
                print(f"Picture: {path.name}")
        except plot.NoPicture as error:
            print(error, file=sys.stderr)
            return 1
    if options.page:
        if not (RESULTS / name).exists():
            print("--page shows a run that is in bench/results: leave out --json", file=sys.stderr)
            return 2
        options.page.write_text(page.filled(options.page.read_text(), content, name))
        print(f"Page: {options.page.name}")
    return 0


def _options() -> argparse.Namespace:
    defaults = Limits()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round with small numbers, a few minutes")
    parser.add_argument(
        "--only",
        type=choices(known_names()),
        default=GROUPS,
        help=f"some of {','.join(GROUPS)}, or names such as S1-16",
    )
    parser.add_argument("--rounds", type=int, help=f"rounds over all scenarios and brokers ({defaults.rounds})")
    parser.add_argument("--messages", type=int, default=defaults.messages, help="at most so many per run (%(default)s)")
    parser.add_argument("--seconds", type=float, help=f"publish at most so long per run ({defaults.seconds:g})")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="begin no run later than this (%(default)s s)")
    parser.add_argument("--keys", type=int, default=defaults.keys, help="distinct routing keys (%(default)s)")
    parser.add_argument("--window", type=int, default=defaults.window, help="unconfirmed messages (%(default)s)")
    parser.add_argument(
        "--brokers",
        type=choices(_BROKERS, empty=True),
        default=_BROKERS,
        help=f"which to start: {','.join(_BROKERS)}; may be empty",
    )
    parser.add_argument("--package", type=package_at, help="a folder that compiled_build.py has written already")
    parser.add_argument("--no-sync", action="store_true", help="start SlotMQ without fsync")
    parser.add_argument(
        "--url", type=Address.parse, help="measure this running broker too: amqp://user:password@host:port/vhost"
    )
    parser.add_argument("--tls-url", type=Address.parse, help="the port with TLS of the broker at --url: amqps://...")
    parser.add_argument("--pid", type=int, help="process of the broker at --url, for CPU time and memory")
    parser.add_argument("--name", default="url", help="what to call the broker at --url")
    parser.add_argument("--dir", type=Path, help="where the brokers' data folders go, on the disk to measure")
    parser.add_argument("--json", type=Path, help="write the runs here instead of bench/results")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the pictures into a folder")
    parser.add_argument("--page", type=page_at, metavar="FILE", help="draw them beside this page and fill its tables")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="measure nothing, show this run")
    options = parser.parse_args()
    base = QUICK if options.quick else defaults
    options.limits = replace(
        base,
        rounds=options.rounds or base.rounds,
        messages=options.messages,
        seconds=options.seconds or base.seconds,
        keys=options.keys,
        window=options.window,
    )
    return options


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
