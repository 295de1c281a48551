"""Throughput: any number of publishers, consumers and queues, at full speed or at a rate."""

from __future__ import annotations

import argparse
from typing import Any, Final

from broker.perf.addressing import Addressing, add_addressing, addressing_of, spread
from broker.perf.flags import add_load, add_scenario, add_time
from broker.perf.load import Load
from broker.perf.performance import check_sides, demand_of, perform, processes_of, seconds_of
from broker.perf.progress import RunProgress
from broker.perf.result import Result
from broker.perf.scenarios import SCENARIOS

SECONDS: Final = 10.0


def add_throughput(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "throughput", SCENARIOS["throughput"])
    add_time(add_load(parser), SECONDS)
    add_addressing(parser)


def run_throughput(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    addressing, load = load_of(options, SECONDS)
    return perform(options, progress, addressing.topology, load)


def load_of(options: argparse.Namespace, default_s: float) -> tuple[Addressing, Load]:
    """Resolve the flags into the addressing and the load.

    Raises: BadOptions.
    """
    check_sides(options)
    addressing = addressing_of(options)
    load = Load(
        address=options.uri,
        material=addressing.material,
        producers=options.producers,
        queues=spread(list(addressing.topology.queues), options.consumers),
        demand=demand_of(options),
        window=options.confirm,
        messages=options.pmessages,
        per_s=options.rate,
        prefetch=options.prefetch,
        deliveries=options.cmessages,
        seconds=seconds_of(options, default_s),
        interval_s=options.interval,
        copies=addressing.copies,
        processes=processes_of(options),
        unsent_bytes=options.unsent,
    )
    return addressing, load
