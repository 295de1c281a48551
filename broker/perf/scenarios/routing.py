"""Routing: publishes past many wildcard bindings with always new keys, of which a share matches one binding each."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from broker.perf.addressing import numbered, spread
from broker.perf.conductor import Conductor
from broker.perf.faults import BadOptions
from broker.perf.flags import add_load, add_scenario, add_time
from broker.perf.load import Load
from broker.perf.outcome import result_of
from broker.perf.performance import ceiling_of, check_sides, demand_of, processes_of, seconds_of, stage, watched
from broker.perf.process_tree import ProcessTree
from broker.perf.progress import RunProgress
from broker.perf.quantities import count, share
from broker.perf.result import Figure, Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.spool import PASS_DIGITS, Material
from broker.perf.topology import RunTopology

BINDINGS: Final = 10_000
MATCH: Final = 0.01
KEYS: Final = 10_000
QUEUES: Final = 10
SECONDS: Final = 10.0
WINDOW: Final = 1000

_SEED: Final = 20_240_229
_MOST_BINDINGS: Final = 5_000_000  # higher numbers match no binding
_SHAPES: Final = ("route.{0}.*.*", "route.*.*.{0}", "*.{0}.#", "#.{0}")  # of binding keys, used in rotation


def add_routing(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "routing", SCENARIOS["routing"])
    load = add_load(parser)
    load.add_argument(
        "--bindings", metavar="N", type=count, default=BINDINGS, help=f"number of bindings, default {BINDINGS}"
    )
    load.add_argument(
        "--match",
        metavar="SHARE",
        type=share,
        default=MATCH,
        help="share of messages that match a binding, default 1%%",
    )
    load.add_argument(
        "--queues", metavar="N", type=count, default=QUEUES, help=f"number of bound queues, default {QUEUES}"
    )
    add_time(load, SECONDS)
    parser.set_defaults(confirm=WINDOW)


def run_routing(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    check_sides(options)
    if not options.producers:
        raise BadOptions("routing needs a publisher")
    if options.bindings > _MOST_BINDINGS:
        raise BadOptions(f"--bindings {options.bindings}: at most {_MOST_BINDINGS}")
    processes = watched(options)
    own = f"slotmq-perf-{os.urandom(4).hex()}"
    queues = numbered(own, options.queues)
    bindings = tuple((queues[n % len(queues)], binding_key(n)) for n in range(options.bindings))
    topology = RunTopology(tuple(queues), own, arguments=dict(options.queue_args))
    load = Load(
        address=options.uri,
        material=Material(
            own,
            routing_keys(options.bindings, options.match),
            options.size,
            persistent="persistent" in options.flags,
            mandatory="mandatory" in options.flags,
            renewed=True,
        ),
        producers=options.producers,
        queues=spread(queues, options.consumers),
        demand=demand_of(options),
        window=options.confirm,
        messages=options.pmessages,
        per_s=options.rate,
        prefetch=options.prefetch,
        deliveries=options.cmessages,
        seconds=seconds_of(options, SECONDS),
        interval_s=options.interval,
        copies=None,
        processes=processes_of(options),
    )
    with stage(options.uri, topology, progress) as here:
        ceiling = ceiling_of(options, load, progress, here.interruption)
        before, begun = _rss_bytes(processes), time.monotonic()
        topology.bind(here.control, bindings, progress)
        figures = _figures(options.bindings, time.monotonic() - begun, before, _rss_bytes(processes))
        outcome = Conductor(load, progress, here.interruption, processes).run()
    return result_of(options, here.control.product, outcome, figures=figures, ceiling_per_s=ceiling)


def binding_key(number: int) -> str:
    """Return the wildcard binding of a number; it matches only the keys of that number."""
    return _SHAPES[number % len(_SHAPES)].format(f"{number:07d}")


def routing_keys(bindings: int, match: float) -> tuple[str, ...]:
    """Return keys of which a share matches a binding, in an order that no cache can predict."""
    draw = Random(_SEED)
    matching = round(KEYS * match)
    numbers = [draw.randrange(bindings) for _ in range(matching)]
    numbers += [draw.randrange(_MOST_BINDINGS, 2 * _MOST_BINDINGS) for _ in range(KEYS - matching)]
    draw.shuffle(numbers)
    return tuple(_key(number, draw) for number in numbers)


def _key(number: int, draw: Random) -> str:
    """Return a key that has its number in the position where the binding of that number expects it."""
    other = f"{draw.randrange(_MOST_BINDINGS, 2 * _MOST_BINDINGS):07d}"
    one = f"{number:07d}"
    if number % len(_SHAPES) in (0, 2):
        return f"route.{one}.{PASS_DIGITS}.{other}"
    return f"route.{other}.{PASS_DIGITS}.{one}"


def _rss_bytes(processes: ProcessTree | None) -> int:
    return processes.usage().rss_bytes if processes else 0


def _figures(bindings: int, seconds: float, before: int, after: int) -> Mapping[str, Figure]:
    figures = {"declare_bindings": Figure(seconds, "s"), "bindings": Figure(bindings / seconds, "per_s")}
    if before:
        figures["memory_per_binding"] = Figure((after - before) / bindings, "bytes")
    return figures
