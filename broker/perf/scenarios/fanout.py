"""Fan-out: each message is routed to many queues, each with a wildcard binding and a consumer of its own."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from broker.perf.addressing import numbered
from broker.perf.faults import BadOptions
from broker.perf.flags import add_load, add_scenario, add_time
from broker.perf.load import Load
from broker.perf.performance import check_sides, demand_of, perform, processes_of, seconds_of
from broker.perf.progress import RunProgress
from broker.perf.quantities import count
from broker.perf.result import Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.spool import Material
from broker.perf.topology import RunTopology

CONSUMERS: Final = 50
KEYS: Final = 10_000
SECONDS: Final = 10.0

BINDING_KEYS: Final = ("fan.*.#", "fan.#", "*.*.*", "#")  # used in rotation; each matches every key


def add_fanout(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "fanout", f"{SCENARIOS['fanout']}; default {CONSUMERS} queues (-y)")
    load = add_load(parser)
    load.add_argument("--keys", metavar="N", type=count, default=KEYS, help=f"number of routing keys, default {KEYS}")
    add_time(load, SECONDS)
    parser.set_defaults(consumers=CONSUMERS)


def run_fanout(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    check_sides(options)
    if not options.producers or not options.consumers:
        raise BadOptions("fanout needs a publisher and a consumer")
    own = f"slotmq-perf-{os.urandom(4).hex()}"
    queues = numbered(own, options.consumers)
    bindings = tuple((queue, BINDING_KEYS[number % len(BINDING_KEYS)]) for number, queue in enumerate(queues))
    topology = RunTopology(tuple(queues), own, bindings=bindings, arguments=dict(options.queue_args))
    load = Load(
        address=options.uri,
        material=Material(
            own,
            tuple(f"fan.{number % 97:02d}.{number:08d}" for number in range(options.keys)),
            options.size,
            persistent="persistent" in options.flags,
            mandatory="mandatory" in options.flags,
        ),
        producers=options.producers,
        queues=tuple((queue,) for queue in queues),
        demand=demand_of(options),
        window=options.confirm,
        messages=options.pmessages,
        per_s=options.rate,
        prefetch=options.prefetch,
        deliveries=options.cmessages,
        seconds=seconds_of(options, SECONDS),
        interval_s=options.interval,
        copies=None if options.queue_args else len(queues),
        processes=processes_of(options),
        unsent_bytes=options.unsent,
    )
    return perform(options, progress, topology, load)
