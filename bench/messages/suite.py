"""S1 to S10 and their variants, against SlotMQ compiled and interpreted, beside RabbitMQ where it is installed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from shutil import which
from typing import Final

from bench import brokers, machine
from bench.brokers import Broker, Certificate
from bench.checkout import choices
from bench.messages.limits import Limits
from bench.messages.picture import cost, more
from bench.messages.rows import Scenario, for_all, known_names, rows, titles
from bench.messages.tables import CEILING, COMPILED, INTERPRETED, TABLES
from bench.run import Run
from bench.service import BrokerFailed
from bench.stage import COMPILED as COMPILED_FORM
from bench.stage import INTERPRETED as INTERPRETED_FORM
from bench.stage import Stage, tell
from bench.suites import Suite
from broker.perf.machine import ProcessTree
from broker.perf.peer import Address

_CEILING_SECONDS: Final = 0.5
_REST_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.25
_REST_SHARE: Final = 0.1  # of a core, for the timers of all brokers
_BROKERS: Final = ("compiled", "interpreted", "rabbitmq")


def measure(stage: Stage, options: argparse.Namespace, _suite: Suite) -> None:
    """Measure every scenario against every broker, stage by stage, each with fresh brokers. Raises: BrokerFailed."""
    limits: Limits = replace(
        stage.plan,
        seconds=options.seconds or stage.plan.seconds,
        keys=options.keys,
        window=options.window,
        stock=options.stock or stage.plan.stock,
    )
    start = Starter(stage, options)
    scenarios = rows(options.only, limits)
    run, steps_ns = stage.run, [machine.step_ns()]
    with brokers.relay() as relay:
        bounded = replace(limits, seconds=_CEILING_SECONDS)
        for scenario in scenarios:
            if scenario.relayed:
                with stage.guarded(f"{scenario.name}, relay"):
                    stage.add(scenario.name, scenario.measure(relay, bounded), broker=CEILING)
    stages: dict[str, list[Scenario]] = {}
    for scenario in scenarios:
        stages.setdefault("all" if options.quick else scenario.stage, []).append(scenario)
    for name, own in stages.items():
        if not stage.late():
            with start.stage(name) as running:
                for scenario in own:
                    measure_scenario(stage, scenario, running, limits)
                    steps_ns.append(machine.step_ns())
    if not start.products:
        raise BrokerFailed("No broker to measure.")
    run.facts |= {
        "products": start.products,
        "fsync": not options.no_sync,
        "steps_ns": [min(steps_ns), max(steps_ns)],
        "titles": titles(scenarios),
    }
    add_relay_times(run)


def measure_scenario(stage: Stage, scenario: Scenario, running: Sequence[Broker], limits: Limits) -> None:
    """Measure one scenario against the brokers in turn; each run waits until all brokers are idle."""

    def measured(broker: Broker, _number: int) -> None:
        _rest(running)
        stage.add(scenario.name, scenario.measure(broker, limits), broker=broker.name)

    chosen = [one for one in running if one.name != INTERPRETED or len(running) == 1 or for_all(scenario)]
    works = {f"{scenario.name}, {broker.name}": partial(measured, broker) for broker in chosen}
    stage.in_turn(works, min(limits.rounds, scenario.rounds))


def _rest(running: Sequence[Broker]) -> None:
    """Wait until the brokers are idle, at most a few seconds: RabbitMQ works on after a run."""
    trees = [broker.processes for broker in running if broker.processes is not None]
    deadline = time.monotonic() + _REST_SECONDS
    spent_s = -1.0
    while trees and time.monotonic() < deadline:
        before_s, spent_s = spent_s, sum(tree.usage().cpu_s for tree in trees)
        if spent_s - before_s <= _REST_SHARE * _POLL_SECONDS:
            return
        time.sleep(_POLL_SECONDS)


def add_relay_times(run: Run) -> None:
    """Add each latency as a multiple of the bare relay's."""
    for row in run.rows():
        relay = run.row(row.part, broker=CEILING)
        if "p50_us" in row and "p50_us" in relay and row["broker"] != CEILING:
            row.figures["relay_times"] = row["p50_us"] / relay["p50_us"]


class Starter:
    """Starts all brokers of a stage at once; those that are not being measured are idle.

    Raises: BrokerFailed at once when the broker at --url cannot be used.
    """

    def __init__(self, stage: Stage, options: argparse.Namespace) -> None:
        self._folder = stage.folder
        self._options = options
        self._packages = {form: path for form, path in stage.packages.items() if form in options.brokers}
        self._certificate = Certificate.issue(stage.folder)
        self._script = brokers.rabbitmq_script() if "rabbitmq" in options.brokers else None
        self.products: dict[str, str] = {}
        if "rabbitmq" in options.brokers and not self._script:
            tell("rabbitmq-server is not installed: measuring without it.")
        if options.url:
            self._given().product()  # detect an unreachable broker before the slow steps

    @contextmanager
    def stage(self, name: str) -> Iterator[Sequence[Broker]]:
        """Run fresh brokers for a stage, and use the one at --url as it is.

        Raises: BrokerFailed, except for RabbitMQ, without which the other brokers are still measured.
        """
        folder = self._folder / name
        flags = ("--no-sync",) if self._options.no_sync else ()
        with ExitStack() as stack:
            running: list[Broker] = []
            for form, package in self._packages.items():
                started = brokers.slotmq(
                    folder / form,
                    options=flags,
                    package=package,
                    name={COMPILED_FORM: COMPILED, INTERPRETED_FORM: INTERPRETED}[form],
                    tenants=True,
                    certificate=self._certificate,
                    mqtt=name in ("mqtt", "all"),
                )
                running.append(stack.enter_context(started))
            if name == "mqtt" and which("mosquitto"):
                running.append(stack.enter_context(brokers.mosquitto(folder)))
            if self._script:
                try:
                    peer = brokers.rabbitmq(folder, self._script, tenants=True, certificate=self._certificate)
                    running.append(stack.enter_context(peer))
                except BrokerFailed as error:
                    tell(f"Measuring without RabbitMQ: {error}")
            if self._options.url:
                running.append(self._given())
            for one in running:
                if one.name not in self.products:
                    self.products[one.name] = one.product()
                    tell(f"{one.name}: {self.products[one.name]}")
            yield running

    def _given(self) -> Broker:
        options = self._options
        processes = ProcessTree(options.pid) if options.pid else None
        idle_bytes = processes.usage().rss_bytes if processes else 0
        return Broker(
            options.name, options.url, processes, other=options.url, tls=options.tls_url, idle_bytes=idle_bytes
        )


def _add_options(parser: argparse.ArgumentParser) -> None:
    limits = Limits()
    parser.add_argument("--seconds", type=float, help=f"publish for this many seconds per run ({limits.seconds:g})")
    parser.add_argument("--keys", type=int, default=limits.keys, help="distinct routing keys (%(default)s)")
    parser.add_argument("--window", type=int, default=limits.window, help="unconfirmed messages (%(default)s)")
    parser.add_argument("--stock", type=int, help=f"queued messages of S7 ({limits.stock:,})")
    parser.add_argument(
        "--brokers",
        type=choices(_BROKERS, empty=True),
        default=_BROKERS,
        help=f"which to start: {','.join(_BROKERS)}; may be empty",
    )
    parser.add_argument("--no-sync", action="store_true", help="start SlotMQ without fsync")
    parser.add_argument(
        "--url", type=Address.parse, help="measure this running broker too: amqp://user:password@host:port/vhost"
    )
    parser.add_argument("--tls-url", type=Address.parse, help="the port with TLS of the broker at --url: amqps://...")
    parser.add_argument("--pid", type=int, help="process of the broker at --url, for CPU time and memory")
    parser.add_argument("--name", default="url", help="what to call the broker at --url")


SUITE: Final = Suite(
    name="messages",
    about=__doc__,
    parts=dict.fromkeys(known_names(), lambda _: None),
    plan=Limits(),
    limit_s=1140.0,
    tables=TABLES,
    printed=("cost", "full", "large", "lone", "tls", "other", "floors", "goals", "machine"),
    mark="bench",
    pictures={"performance-cost": ((11, 8), cost), "performance-more": ((11, 11), more)},
    add_options=_add_options,
    measure=measure,
)
