"""Backlog: messages are published without a consumer, and drained afterwards."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from broker.perf.addressing import numbered, spread
from broker.perf.conductor import Conductor
from broker.perf.faults import BadOptions
from broker.perf.flags import add_load, add_scenario
from broker.perf.load import Load
from broker.perf.outcome import RunOutcome, result_of
from broker.perf.performance import ceiling_of, check_sides, demand_of, processes_of, stage, watched
from broker.perf.process_tree import ProcessTree
from broker.perf.progress import RunProgress
from broker.perf.quantities import count
from broker.perf.result import Figure, Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.spool import Material
from broker.perf.topology import RunTopology

MESSAGES: Final = 100_000
WINDOW: Final = 1000
PREFETCH: Final = 1000
ACK_EVERY: Final = 100
BODY_BYTES: Final = 100


def add_backlog(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "backlog", f"{SCENARIOS['backlog']}; default {MESSAGES} messages (-C), persistent")
    load = add_load(parser)
    load.add_argument(
        "--queues", metavar="N", type=count, default=1, help="number of queues, published to in turn, default 1"
    )
    load.add_argument("--transient", action="store_true", help="publish transient messages")
    parser.set_defaults(pmessages=MESSAGES, confirm=WINDOW, prefetch=PREFETCH, ack_every=ACK_EVERY, size=BODY_BYTES)


def run_backlog(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    check_sides(options)
    if not options.producers or not options.consumers:
        raise BadOptions("backlog needs a publisher, and a consumer to drain it")
    processes = watched(options)
    own = f"slotmq-perf-{os.urandom(4).hex()}"
    queues = numbered(own, options.queues)
    topology = RunTopology(tuple(queues), arguments=dict(options.queue_args))
    filling = Load(
        address=options.uri,
        material=Material(
            "", tuple(queues), options.size, persistent=not options.transient, mandatory="mandatory" in options.flags
        ),
        producers=options.producers,
        queues=(),
        demand=demand_of(options),
        window=options.confirm,
        messages=options.pmessages,
        per_s=options.rate,
        prefetch=options.prefetch,
        interval_s=options.interval,
        processes=processes_of(options),
    )
    with stage(options.uri, topology, progress) as here:
        ceiling = ceiling_of(options, filling, progress, here.interruption)
        before = _rss_bytes(processes)
        outcome = Conductor(filling, progress, here.interruption, processes).run()
        figures = dict(_filled(outcome, before))
        kept = outcome.tally.published - outcome.tally.nacked - outcome.tally.returned
        if kept and not outcome.failures and not outcome.interrupted:
            wanted = min(kept, options.cmessages or kept)
            queues_of = spread(queues, options.consumers)
            draining = replace(filling, producers=0, messages=None, queues=queues_of, deliveries=wanted, ready=kept)
            drained = Conductor(draining, progress, here.interruption, processes).run()
            figures |= _drained(drained)
            _append(outcome, drained)
    return result_of(options, here.control.product, outcome, figures=figures, ceiling_per_s=ceiling)


def _append(first: RunOutcome, second: RunOutcome) -> None:
    """Append the second outcome to the first."""
    first.intervals += [replace(one, at_s=one.at_s + first.seconds) for one in second.intervals]
    first.seconds += second.seconds
    first.deliver_s = second.deliver_s
    first.tally += second.tally
    first.due_times.merge(second.due_times)
    first.cpu_s += second.cpu_s
    first.busy_share = max(first.busy_share, second.busy_share)
    first.after = second.after
    first.failures += second.failures
    first.interrupted = second.interrupted


def _filled(outcome: RunOutcome, before: int) -> Mapping[str, Figure]:
    figures = {"fill": Figure(outcome.publish_s, "s")}
    if outcome.before and outcome.after and outcome.tally.published:
        growth = outcome.after.rss_bytes - before
        cpu_s = outcome.after.cpu_s - outcome.before.cpu_s
        figures["fill_cpu_per_message"] = Figure(cpu_s / outcome.tally.published * 1e6, "us")
        figures["memory_growth"] = Figure(growth, "bytes")
        figures["memory_per_message"] = Figure(growth / outcome.tally.published, "bytes")
    return figures


def _drained(outcome: RunOutcome) -> Mapping[str, Figure]:
    figures = {"drain": Figure(outcome.deliver_s, "s")}
    if outcome.before and outcome.after and outcome.tally.delivered:
        cpu_s = outcome.after.cpu_s - outcome.before.cpu_s
        figures["drain_cpu_per_message"] = Figure(cpu_s / outcome.tally.delivered * 1e6, "us")
    return figures


def _rss_bytes(processes: ProcessTree | None) -> int:
    return processes.usage().rss_bytes if processes else 0
