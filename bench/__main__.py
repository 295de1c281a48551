"""Measures SlotMQ, beside RabbitMQ where it is installed: what `make bench` runs."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import brokers, machine, plot, report
from bench.peer import Address
from bench.process_tree import ProcessTree
from bench.results import keep, leave
from bench.scenario import SCENARIOS, Limits, Scenario
from bench.suite import Suite

_LIMIT_S = 270.0
_QUICK_LIMIT_S = 50.0
_QUICK_SECONDS = 1.5


def main() -> int:
    """Run the benchmark that the command line asks for and return the exit code."""
    signal.signal(signal.SIGTERM, leave)
    try:
        return _bench(_options())
    except brokers.NotStarted as error:
        print(error, file=sys.stderr)
        return 1


def _bench(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir)))
        found = machine.describe(folder)
        print("Machine: " + ", ".join(f"{name} {value}" for name, value in found.items()))
        if found["load"] > found["cores"] / 2:
            print("Others use this machine: CPU time per message will be too high for every broker.")
        running, products = _start(stack, folder, options)
        if not running:
            print("No broker to measure.", file=sys.stderr)
            return 1
        suite = Suite(running, options.scenarios, options.limits, options.repeats, begun + options.limit, _tell)
        with brokers.relay() as relay:
            suite.run_ceiling(relay)
        suite.run()
    table = report.lines(suite.runs)
    result = report.verdict(
        table,
        options.scenarios,
        synced=not options.no_sync,
        peer_installed=brokers.rabbitmq_script() is not None,
    )
    print("\n" + report.table_text(table, options.scenarios))
    print("\n" + report.ceiling_text(table))
    print(report.steadiness_text(suite.steps_ns))
    for failure in suite.failures:
        print(f"FAILED: {failure}")
    print(f"\n{result.text}")
    facts = {"machine": found, "products": products}
    name = keep(facts | _content(options, suite, table, result), options.json, "bench")
    print(f"Every run is in {name}; this took {time.monotonic() - begun:.0f} s.")
    return _picture(options, suite, table, found) or bool(suite.failures)


def _start(stack: ExitStack, folder: Path, options: argparse.Namespace) -> tuple[list[brokers.Broker], dict[str, str]]:
    """Start the brokers asked for, all at once: the one that is not measured sits idle.

    Raises: NotStarted, for all but RabbitMQ, without which there is still something to measure.
    """
    running: list[brokers.Broker] = []
    if options.url:
        processes = ProcessTree(options.pid) if options.pid else None
        running.append(brokers.Broker(options.name, options.url, processes))
    if "slotmq" in options.brokers:
        arguments = ("--no-sync",) if options.no_sync else ()
        running.append(stack.enter_context(brokers.slotmq(folder, options=arguments)))
    script = brokers.rabbitmq_script()
    if "rabbitmq" in options.brokers and script:
        try:
            running.append(stack.enter_context(brokers.rabbitmq(folder, script)))
        except brokers.NotStarted as error:
            print(f"Measuring without RabbitMQ: {error}", file=sys.stderr)
    elif "rabbitmq" in options.brokers:
        print("rabbitmq-server is not installed: measuring without it.")
    products = {broker.name: broker.product() for broker in running}
    for name, product in products.items():
        print(f"{name}: {product}")
    return running, products


def _content(
    options: argparse.Namespace, suite: Suite, table: Sequence[report.Line], result: report.Verdict
) -> dict[str, Any]:
    """Return every run and what follows from them, for the JSON file."""
    return {
        "limits": asdict(options.limits) | {"repeats": options.repeats, "limit_s": options.limit},
        "fsync": not options.no_sync,
        "goal": {"reached": result.reached, "text": result.text},
        "medians": report.summary(table),
        "runs": [run.record() | {"step_ns": step} for run, step in zip(suite.runs, suite.steps_ns, strict=True)],
        "failures": suite.failures,
        "cut_short": suite.cut_short,
    }


def _picture(options: argparse.Namespace, suite: Suite, table: Sequence[report.Line], found: dict[str, Any]) -> int:
    if not options.plot:
        return 0
    caption = f"medians and single runs; {found['cores']} cores, {found['cpu']}, fdatasync {found['fdatasync_us']} µs"
    try:
        plot.draw(options.plot, table, suite.runs, options.scenarios, caption)
    except plot.NoPicture as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Picture: {options.plot.name}")
    return 0


def _options() -> argparse.Namespace:
    defaults = Limits()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, at most a minute")
    parser.add_argument("--messages", type=int, default=defaults.messages, help="at most so many per run (%(default)s)")
    parser.add_argument("--seconds", type=float, help=f"publish at most so long per run ({defaults.seconds:g})")
    parser.add_argument("--repeats", type=int, help="rounds over all scenarios and brokers (3)")
    parser.add_argument("--limit", type=float, help=f"begin no run later than this, in seconds ({_LIMIT_S:g})")
    parser.add_argument("--keys", type=int, default=defaults.keys, help="distinct routing keys (%(default)s)")
    parser.add_argument("--window", type=int, default=defaults.window, help="unconfirmed messages (%(default)s)")
    parser.add_argument("--scenario", action="append", choices=[one.name for one in SCENARIOS], help="only these")
    parser.add_argument("--brokers", default="slotmq,rabbitmq", help="which to start (%(default)s); may be empty")
    parser.add_argument("--no-sync", action="store_true", help="start SlotMQ without fsync")
    parser.add_argument(
        "--url", type=Address.parse, help="measure this running broker too: amqp://user:password@host:port/vhost"
    )
    parser.add_argument("--pid", type=int, help="process of the broker at --url, for CPU time and memory")
    parser.add_argument("--name", default="url", help="what to call the broker at --url")
    parser.add_argument("--dir", type=Path, help="where the brokers' data folders go, on the disk to measure")
    parser.add_argument("--json", type=Path, help="write the runs here instead of bench/results")
    parser.add_argument("--plot", type=Path, help="draw a picture: .svg, .png or .pdf")
    options = parser.parse_args()
    seconds = options.seconds or (_QUICK_SECONDS if options.quick else defaults.seconds)
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.limit = options.limit or (_QUICK_LIMIT_S if options.quick else _LIMIT_S)
    options.scenarios = _scenarios(options.scenario)
    options.limits = replace(
        defaults,
        messages=options.messages,
        seconds=seconds,
        warm_up_seconds=min(seconds, defaults.warm_up_seconds),
        keys=options.keys,
        window=options.window,
    )
    return options


def _scenarios(names: list[str] | None) -> tuple[Scenario, ...]:
    return tuple(one for one in SCENARIOS if not names or one.name in names)


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
