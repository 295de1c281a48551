"""Ping-pong: pairs of clients that each wait for every single message, which rules out batching."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any, Final

from broker.perf.addressing import numbered
from broker.perf.conductor import Conductor
from broker.perf.flags import add_scenario, add_time
from broker.perf.load import Load
from broker.perf.outcome import result_of
from broker.perf.pairs import PairShare, pair_part
from broker.perf.performance import processes_of, seconds_of, stage, watched
from broker.perf.progress import RunProgress
from broker.perf.quantities import count, size
from broker.perf.receiver import ReceiverPace
from broker.perf.result import Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.spool import Material
from broker.perf.stamp import STAMP_BYTES
from broker.perf.topology import RunTopology

PAIRS: Final = 8
SECONDS: Final = 10.0


def add_pingpong(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "pingpong", f"{SCENARIOS['pingpong']}, one under way in each pair, unconfirmed")
    load = parser.add_argument_group("load")
    load.add_argument("-x", "--pairs", metavar="N", type=count, default=PAIRS, help=f"number of pairs, default {PAIRS}")
    load.add_argument(
        "-s",
        "--size",
        metavar="SIZE",
        type=size,
        default=STAMP_BYTES,
        help=f"size of a body, default {STAMP_BYTES} bytes",
    )
    load.add_argument("-C", "--pmessages", metavar="N", type=count, help="stop after N messages, both ways")
    load.add_argument("--persistent", action="store_true", help="publish persistent messages")
    load.add_argument(
        "--processes", metavar="N", type=count, help="number of processes (default one per core, at most 4)"
    )
    add_time(load, SECONDS)
    parser.set_defaults(cmessages=None)


def run_pingpong(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    processes = watched(options)
    own = f"slotmq-perf-{os.urandom(4).hex()}"
    queues = numbered(own, 2 * options.pairs)
    load = Load(
        address=options.uri,
        material=Material("", tuple(queues), options.size, persistent=options.persistent),
        producers=0,
        queues=(),
        demand=ReceiverPace(0, options.size),
        messages=options.pmessages,
        seconds=seconds_of(options, SECONDS),
        interval_s=options.interval,
    )
    tasks = {
        f"pairs {number}": partial(pair_part, share) for number, share in enumerate(_shares(options, load, queues))
    }
    with stage(options.uri, RunTopology(tuple(queues)), progress) as here:
        outcome = Conductor(load, progress, here.interruption, processes, tasks).run()
    outcome.deliver_s = outcome.publish_s
    return result_of(options, here.control.product, outcome)


def _shares(options: argparse.Namespace, load: Load, queues: list[str]) -> list[PairShare]:
    """Return the pairs of each process, and its share of the messages."""
    pairs = tuple(zip(queues[::2], queues[1::2], strict=True))
    used = min(processes_of(options), len(pairs))
    if load.messages is not None:
        used = min(used, max(1, load.messages // len(pairs)))
    shares = []
    for part in range(used):
        messages = None if load.messages is None else load.messages // used + (part < load.messages % used)
        shares.append(PairShare(load.address, pairs[part::used], options.size, options.persistent, messages))
    return shares
